//! Every DaemonSet that is rendered, by source, runtime and flavour, as a file to review: a change of one shows there. A
//! case is a row of a table; another stage adds its own table.
#![allow(missing_docs, clippy::expect_used, clippy::panic, reason = "tests")]

mod sim;

use gpu_operator_crd::{policy::Stage, report::HostRuntime};
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

/// What stands on a driver that a container of ours does not bring.
struct OnHost {
    /// The file's name.
    name: &'static str,
    /// The policy's spec.
    spec: &'static str,
    /// The node's container runtime.
    runtime: &'static str,
    /// `ID` of the node's os-release.
    os: &'static str,
    /// What the host brings.
    host: Brings,
}

/// What a host brings.
#[derive(PartialEq)]
enum Brings {
    Nothing,
    Driver,
    DriverAndRuntime,
}

const ON_HOST_DRIVER: [OnHost; 10] = [
    OnHost { name: "host-cdi", spec: "{}", runtime: "containerd://2.1.4", os: "ubuntu", host: Brings::Driver },
    OnHost { name: "host-runtime", spec: "{}", runtime: "containerd://1.7.27", os: "ubuntu", host: Brings::Driver },
    OnHost {
        name: "host-brings-toolkit",
        spec: "{defaults: {toolkit: {injection: None}}}",
        runtime: "containerd://1.7.27",
        os: "ubuntu",
        host: Brings::Driver,
    },
    OnHost {
        name: "host-brings-runtime",
        spec: "{}",
        runtime: "docker://27.0.3",
        os: "ubuntu",
        host: Brings::DriverAndRuntime,
    },
    OnHost {
        name: "host-mig",
        spec: "{defaults: {devicePlugin: {mig: {strategy: Single, layout: [{profile: 7g.80gb, count: 1}]}}}}",
        runtime: "containerd://2.1.4",
        os: "ubuntu",
        host: Brings::Driver,
    },
    OnHost {
        name: "host-mps",
        spec: "{defaults: {devicePlugin: {sharing: {mps: {replicas: 4}}}}}",
        runtime: "containerd://2.1.4",
        os: "ubuntu",
        host: Brings::Driver,
    },
    OnHost {
        name: "cos-nvidia",
        spec: "{defaults: {driver: {source: GkeCos}, devicePlugin: {flavor: Nvidia}}}",
        runtime: "containerd://2.1.4",
        os: "cos",
        host: Brings::Nothing,
    },
    OnHost { name: "cos-google", spec: "{}", runtime: "containerd://2.1.4", os: "cos", host: Brings::Nothing },
    OnHost {
        name: "ubuntu-google",
        spec: "{defaults: {driver: {source: GkeUbuntu}}}",
        runtime: "containerd://2.1.4",
        os: "ubuntu",
        host: Brings::Nothing,
    },
    OnHost {
        name: "run-file-google",
        spec: "{defaults: {driver: {source: RunFile, installDir: /opt/nvidia}, devicePlugin: {flavor: Gke}}}",
        runtime: "docker://27.0.3",
        os: "ubuntu",
        host: Brings::Nothing,
    },
];

#[test]
fn every_daemon_set_on_a_driver_of_the_hosts_is_the_one_that_was_reviewed() {
    for OnHost { name, spec, runtime, os, host } in ON_HOST_DRIVER {
        let mut sim = Sim::new().gpu_node("a", "2330", 1);
        if host != Brings::Nothing {
            sim.host_driver("a", "580.1.1", true);
        }
        if host == Brings::DriverAndRuntime {
            let (file, handler) = ("/etc/docker/daemon.json".to_owned(), "nvidia".to_owned());
            sim.report("a").runtimes = vec![HostRuntime { file, handler, default: true }];
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
