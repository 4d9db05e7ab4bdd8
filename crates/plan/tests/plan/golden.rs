//! Golden files of the rendered DaemonSets, by source, runtime and flavor, so that changes can be reviewed. Each case
//! is a row of a table.

use crate::{
    reviewed::{default_fleet, review},
    sim::Sim,
};
use gpu_operator_crd::{policy::Stage, report::HostRuntime};
use test_support::yaml_blocks::pages;

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
    Case { name: "driver-container-kepler", spec: "{}", os: ("ubuntu", "20.04"), gpu: "102d" },
    Case {
        name: "driver-precompiled",
        spec: "{defaults: {driver: {precompiled: true}}}",
        os: ("ubuntu", "24.04"),
        gpu: "2330",
    },
    Case {
        name: "driver-container-files-ubuntu",
        spec: "{defaults: {driver: {configMaps: {kernelModules: {name: parameters, keys: [nvidia.conf, nvidia-uvm.conf]}, repositories: {name: apt, keys: [internal.list]}, certificates: {name: ca, keys: [internal.crt, partner.crt]}}}}}",
        os: ("ubuntu", "22.04"),
        gpu: "2330",
    },
    Case {
        name: "driver-container-files-rhel",
        spec: "{defaults: {driver: {configMaps: {repositories: {name: dnf, keys: [internal.repo]}, certificates: {name: ca, keys: [tls-ca-bundle.pem]}}}}}",
        os: ("rhel", "9.4"),
        gpu: "2330",
    },
    Case {
        name: "driver-proxy",
        spec: "{proxy: {httpProxy: \"http://proxy.example.com:3128\", httpsProxy: \"http://proxy.example.com:3128\", noProxy: \".svc,10.0.0.0/8\", trustedCAConfigMap: ca}}",
        os: ("ubuntu", "22.04"),
        gpu: "2330",
    },
    Case {
        name: "driver-gpudirect",
        spec: "{defaults: {driver: {env: [{name: GPU_DIRECT_RDMA_ENABLED, value: \"true\"}]}}}",
        os: ("ubuntu", "22.04"),
        gpu: "2330",
    },
    Case { name: "driver-gke-cos", spec: "{}", os: ("cos", "117"), gpu: "1eb8" },
    Case {
        name: "driver-gke-cos-latest",
        spec: "{defaults: {driver: {source: GkeCos, channel: Latest}}}",
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
        spec: "{defaults: {driver: {source: RunFile, sha256: a1, version: 460.56, image: {repository: registry.example.com/run-file, tag: ubuntu20.04}}}}",
        os: ("ubuntu", "20.04"),
        gpu: "13bb",
    },
];

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
fn the_daemon_sets_of_the_default_policy_are_as_reviewed() {
    let sim = default_fleet();
    let sets: Vec<_> = sim.sets.values().collect();
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_yaml_snapshot!("default", sets);
    });
}

#[test]
fn the_daemon_sets_of_the_driver_are_as_reviewed() {
    check(&DRIVER, Stage::Driver);
}

/// The stages on top of a driver that this operator does not install.
struct OnHost {
    /// The file's name.
    name: &'static str,
    /// The policy's spec.
    spec: &'static str,
    /// The node's container runtime.
    runtime: &'static str,
    /// `ID` of the node's os-release.
    os: &'static str,
    /// The components that the host already has.
    host: Preinstalled,
}

/// The components that a host already has.
#[derive(PartialEq)]
enum Preinstalled {
    Nothing,
    Driver,
    DriverAndRuntime,
}

const ON_HOST_DRIVER: [OnHost; 10] = [
    OnHost { name: "host-cdi", spec: "{}", runtime: "containerd://2.1.4", os: "ubuntu", host: Preinstalled::Driver },
    OnHost {
        name: "host-runtime",
        spec: "{}",
        runtime: "containerd://1.7.27",
        os: "ubuntu",
        host: Preinstalled::Driver,
    },
    OnHost {
        name: "host-brings-toolkit",
        spec: "{defaults: {toolkit: {injection: None}}}",
        runtime: "containerd://1.7.27",
        os: "ubuntu",
        host: Preinstalled::Driver,
    },
    OnHost {
        name: "host-brings-runtime",
        spec: "{}",
        runtime: "docker://27.0.3",
        os: "ubuntu",
        host: Preinstalled::DriverAndRuntime,
    },
    OnHost {
        name: "host-mig",
        spec: "{defaults: {devicePlugin: {mig: {strategy: Single, layout: [{profiles: [{profile: 7g.80gb, count: 1}]}]}}}}",
        runtime: "containerd://2.1.4",
        os: "ubuntu",
        host: Preinstalled::Driver,
    },
    OnHost {
        name: "host-mps",
        spec: "{defaults: {devicePlugin: {sharing: {mps: {replicas: 4}}}}}",
        runtime: "containerd://2.1.4",
        os: "ubuntu",
        host: Preinstalled::Driver,
    },
    OnHost {
        name: "cos-nvidia",
        spec: "{defaults: {driver: {source: GkeCos}, devicePlugin: {flavor: Nvidia}}}",
        runtime: "containerd://2.1.4",
        os: "cos",
        host: Preinstalled::Nothing,
    },
    OnHost { name: "cos-google", spec: "{}", runtime: "containerd://2.1.4", os: "cos", host: Preinstalled::Nothing },
    OnHost {
        name: "ubuntu-google",
        spec: "{defaults: {driver: {source: GkeUbuntu}}}",
        runtime: "containerd://2.1.4",
        os: "ubuntu",
        host: Preinstalled::Nothing,
    },
    OnHost {
        name: "run-file-google",
        spec: "{defaults: {driver: {source: RunFile, sha256: a1, version: 595.91.07, installDir: /srv/nvidia, image: {repository: registry.example.com/run-file, tag: ubuntu22.04}}, devicePlugin: {flavor: Gke}}}",
        runtime: "docker://27.0.3",
        os: "ubuntu",
        host: Preinstalled::Nothing,
    },
];

#[test]
fn the_daemon_sets_on_top_of_a_given_driver_are_as_reviewed() {
    for OnHost { name, spec, runtime, os, host } in ON_HOST_DRIVER {
        let mut sim = Sim::new().gpu_node("a", "2330", 1);
        if host != Preinstalled::Nothing {
            sim.host_driver("a", "580.1.1", true);
        }
        if host == Preinstalled::DriverAndRuntime {
            let (file, handler) = ("/etc/docker/daemon.json".to_owned(), "nvidia".to_owned());
            sim.report("a").runtimes = vec![HostRuntime { file, handler, default: true }];
        }
        sim.report("a").os.id = os.into();
        sim.node_mut("a").runtime = runtime.into();
        sim.apply_policy("all", spec);
        sim.settle();
        review(name, &sim, &[Stage::Toolkit, Stage::Mps, Stage::DevicePlugin]);
    }
}

#[test]
fn containers_that_the_docs_name_are_in_a_pod() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |path: &std::path::Path| std::fs::read_to_string(path).expect("a text");
    let snapshots = std::fs::read_dir(folder.join("tests/plan/snapshots")).expect("a folder");
    let pods: String = snapshots.map(|entry| text(&entry.expect("an entry").path())).collect();
    let docs: String = pages(&folder.join("../..")).iter().map(|(_, path)| text(path)).collect();
    let named: Vec<&str> = docs.split(" -c ").skip(1).filter_map(|rest| rest.split(['`', ' ', '\n']).next()).collect();
    assert!(named.contains(&"install-driver"), "{named:?}");
    for name in named {
        let is_there = [format!("name: {name}\n"), format!("[{name}]")].iter().any(|found| pods.contains(found));
        assert!(is_there, "no pod has a container {name}");
    }
}

/// Golden files of all stages: name, policy, and the host's system, version and container runtime.
const WHOLE: [(&str, &str, &str, &str, &str); 3] = [
    // SELinux and the subscription of RHEL, and the same with CRI-O, which mounts the subscription itself. Verified by
    // these files only: no such host was available.
    ("whole-rhel", "{}", "rhel", "9.4", "containerd://2.1.4"),
    ("whole-rhel-crio", "{}", "rhel", "9.4", "cri-o://1.34.1"),
    (
        "whole-sles",
        "{defaults: {driver: {version: 580.173.02, image: {repository: registry.example.com/nvidia/driver, tag: 580.173.02-sles15.7}}}}",
        "sles",
        "15.7",
        "containerd://1.7.27",
    ),
];

#[test]
fn the_daemon_sets_of_hosts_with_selinux_or_a_subscription_are_as_reviewed() {
    for (name, spec, id, version, runtime) in WHOLE {
        let mut sim = Sim::new().gpu_node("a", "2330", 1);
        let os = &mut sim.report("a").os;
        (os.id, os.version_id) = (id.into(), version.into());
        sim.node_mut("a").runtime = runtime.into();
        sim.apply_policy("all", spec);
        sim.settle();
        review(name, &sim, &[Stage::Driver, Stage::Toolkit, Stage::DevicePlugin]);
    }
}

#[test]
fn hosts_with_different_mounts_of_the_subscription_only_differ_in_the_driver_daemon_set() {
    let mut sim = Sim::new().gpu_node("a", "2330", 1).gpu_node("b", "2330", 1);
    for (name, runtime) in [("a", "containerd://2.1.4"), ("b", "cri-o://1.34.1")] {
        let os = &mut sim.report(name).os;
        (os.id, os.version_id) = ("rhel".into(), "9.4".into());
        sim.node_mut(name).runtime = runtime.into();
    }
    sim.apply_policy("all", "{}");
    sim.settle();
    let has_subscription = |set: &k8s_openapi::api::apps::v1::DaemonSet| {
        serde_json::to_string(&set.spec).expect("JSON").contains("/run/secrets/rhsm")
    };
    let sets = sim.sets_of(Stage::Driver);
    let with = sets.iter().filter(|set| has_subscription(set)).count();
    assert_eq!((sets.len(), with), (2, 1), "{:?}", sim.sets.keys());
    // Only the driver container uses the subscription.
    for stage in [Stage::Toolkit, Stage::DevicePlugin] {
        assert_eq!(sim.sets_of(stage).len(), 1, "{:?}", sim.sets.keys());
    }
}

#[test]
fn the_proxy_is_set_in_operand_containers_but_not_in_the_operators_own() {
    let spec = "{proxy: {httpsProxy: \"http://proxy.example.com:3128\", trustedCAConfigMap: ca}}";
    let mut sim = Sim::settled_fleet(spec, &["a"]);
    sim.join("cos", "1eb8", 1);
    sim.report("cos").os.id = "cos".into();
    sim.settle();
    let pods = sim.sets.values().map(|set| set.spec.clone().and_then(|spec| spec.template.spec).expect("a pod's spec"));
    let mut count = 0;
    for pod in pods {
        for container in pod.init_containers.iter().flatten().chain(&pod.containers) {
            let own = container.image.as_ref() == Some(&sim.settings.probe_image);
            let has_proxy = container.env.iter().flatten().any(|variable| variable.name == "HTTPS_PROXY")
                && container.volume_mounts.iter().flatten().any(|mount| mount.name == "trusted-ca");
            assert_eq!(has_proxy, !own, "{}", container.name);
            count += u32::from(has_proxy);
        }
    }
    assert_eq!(count, 5, "driver and plugin of both nodes, and the toolkit of the node that needs one");
}
