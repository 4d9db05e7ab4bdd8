//! Every DaemonSet that is rendered, by source, runtime and flavour, as a file to review: a change of one shows there. A
//! case is a row of a table; another stage adds its own table.
#![allow(missing_docs, clippy::expect_used, clippy::panic, reason = "tests")]

mod sim;

use gpu_operator_crd::policy::Stage;
use sim::Sim;

/// A kind of node under a policy.
struct Case {
    /// The file's name.
    name: &'static str,
    /// The policy's spec.
    spec: &'static str,
    /// `ID` and `VERSION_ID` of the node's os-release.
    os: (&'static str, &'static str),
    /// PCI id of its GPUs.
    gpu: &'static str,
}

/// The driver's DaemonSets.
const DRIVER: [Case; 10] = [
    Case { name: "driver-container", spec: "{}", os: ("ubuntu", "22.04"), gpu: "2330" },
    Case { name: "driver-container-kepler", spec: "{}", os: ("ubuntu", "22.04"), gpu: "102d" },
    Case {
        name: "driver-precompiled",
        spec: "{defaults: {driver: {precompiled: true}}}",
        os: ("ubuntu", "24.04"),
        gpu: "2330",
    },
    Case {
        name: "driver-container-files-ubuntu",
        spec: "{defaults: {driver: {configMaps: {kernelModules: parameters, repositories: apt, certificates: ca}}}}",
        os: ("ubuntu", "22.04"),
        gpu: "2330",
    },
    Case {
        name: "driver-container-files-rhel",
        spec: "{defaults: {driver: {configMaps: {repositories: dnf, certificates: ca}}}}",
        os: ("rhel", "9.4"),
        gpu: "2330",
    },
    Case {
        name: "driver-proxy",
        spec: "{proxy: {httpProxy: \"http://proxy.example.com:3128\", httpsProxy: \"http://proxy.example.com:3128\", noProxy: \".svc,10.0.0.0/8\", trustedCAConfigMap: ca}}",
        os: ("ubuntu", "22.04"),
        gpu: "2330",
    },
    Case { name: "driver-gke-cos", spec: "{}", os: ("cos", "117"), gpu: "1eb8" },
    Case {
        name: "driver-gke-cos-latest",
        spec: "{defaults: {driver: {source: GkeCos, version: latest}}}",
        os: ("cos", "117"),
        gpu: "1eb8",
    },
    Case {
        name: "driver-gke-ubuntu",
        spec: "{defaults: {driver: {source: GkeUbuntu}}}",
        os: ("ubuntu", "24.04"),
        gpu: "1eb8",
    },
    Case {
        name: "driver-run-file",
        spec: "{defaults: {driver: {source: RunFile, version: 460.56, installDir: /opt/nvidia}}}",
        os: ("ubuntu", "20.04"),
        gpu: "13bb",
    },
];

/// Holds the DaemonSets of some stages against their file.
fn review(name: &str, sim: &Sim, stages: &[Stage]) {
    let sets: Vec<_> = stages.iter().flat_map(|stage| sim.sets_of(*stage)).collect();
    insta::with_settings!({ snapshot_path => "golden", prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_yaml_snapshot!(name, sets);
    });
}

fn check(cases: &[Case], stage: Stage) {
    for case in cases {
        let mut sim = Sim::new().gpu_node("a", case.gpu, 1).policy("all", case.spec);
        let os = &mut sim.report("a").os;
        (os.id, os.version_id) = (case.os.0.into(), case.os.1.into());
        sim.settle();
        review(case.name, &sim, &[stage]);
    }
}

#[test]
fn every_daemon_set_of_the_driver_is_the_one_that_was_reviewed() {
    check(&DRIVER, Stage::Driver);
}

/// DaemonSets that stand on a driver of the host's, or of Google's: file, spec, container runtime, os-release ID.
const ON_HOST_DRIVER: [(&str, &str, &str, &str); 6] = [
    ("host-cdi", "{}", "containerd://2.1.4", "ubuntu"),
    ("host-runtime", "{}", "containerd://1.7.27", "ubuntu"),
    ("host-brings-toolkit", "{defaults: {toolkit: {injection: None}}}", "containerd://1.7.27", "ubuntu"),
    (
        "host-mig",
        "{defaults: {devicePlugin: {mig: {strategy: Single, layout: [{profile: 7g.80gb, count: 1}]}}}}",
        "containerd://2.1.4",
        "ubuntu",
    ),
    ("host-mps", "{defaults: {devicePlugin: {sharing: {mps: {replicas: 4}}}}}", "containerd://2.1.4", "ubuntu"),
    (
        "cos-nvidia",
        "{defaults: {driver: {source: GkeCos}, devicePlugin: {flavor: Nvidia}}}",
        "containerd://2.1.4",
        "cos",
    ),
];

#[test]
fn every_daemon_set_on_a_driver_of_the_hosts_is_the_one_that_was_reviewed() {
    for (name, spec, runtime, os) in ON_HOST_DRIVER {
        let mut sim = Sim::new().gpu_node("a", "2330", 1);
        if os == "ubuntu" {
            sim.host_driver("a", "580.1.1", true);
        }
        sim.report("a").os.id = os.into();
        sim.nodes.get_mut("a").expect("a node").runtime = runtime.into();
        sim.apply_policy("all", spec);
        sim.settle();
        review(name, &sim, &[Stage::Toolkit, Stage::Mps, Stage::DevicePlugin]);
    }
}

#[test]
fn the_proxy_reaches_every_container_of_an_operand_and_none_of_ours() {
    let spec = "{proxy: {httpsProxy: \"http://proxy.example.com:3128\", trustedCAConfigMap: ca}}";
    let mut sim = Sim::settled_fleet(spec, &["a"]);
    sim.join("cos", "1eb8", 1);
    sim.report("cos").os.id = "cos".into();
    sim.settle();
    let pods = sim.sets.values().map(|set| set.spec.clone().and_then(|spec| spec.template.spec).expect("a pod's spec"));
    let mut told = 0;
    for pod in pods {
        for container in pod.init_containers.iter().flatten().chain(&pod.containers) {
            let ours = container.image.as_ref() == Some(&sim.settings.probe_image);
            let knows = container.env.iter().flatten().any(|variable| variable.name == "HTTPS_PROXY")
                && container.volume_mounts.iter().flatten().any(|mount| mount.name == "trusted-ca");
            assert_eq!(knows, !ours, "{}", container.name);
            told += u32::from(knows);
        }
    }
    assert_eq!(told, 5, "driver and plugin of both nodes, and the toolkit of the one that needs one");
}
