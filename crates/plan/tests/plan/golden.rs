//! Golden files of the rendered DaemonSets, by source, runtime and flavor, so that changes can be reviewed. Each case is a row of a
//! table, and its file contains the differences from a similar case.

use crate::{
    reviewed::{Base, default_fleet, review},
    sim::Sim,
    sources::NODE_POOL,
};
use gpu_operator_crd::{policy::Stage, report::HostRuntime};
use test_support::yaml_blocks::pages;

/// A kind of node under a policy.
#[derive(Clone)]
struct Case {
    /// The file's name.
    name: &'static str,
    /// The case with which it is compared; if empty, the default policy.
    like: &'static str,
    spec: &'static str,
    /// `ID` and `VERSION_ID` of the node's os-release.
    os: (&'static str, &'static str),
    /// PCI id of the GPU.
    gpu: &'static str,
    runtime: &'static str,
    kubelet: &'static str,
    host: Preinstalled,
}

/// The components that a host already has.
#[derive(Clone, PartialEq)]
enum Preinstalled {
    Nothing,
    Driver,
    DriverAndRuntime,
    /// A driver in the directory of Google's installers.
    GoogleDriver,
}

/// Returns a case on Ubuntu with containerd 2.1.
const fn case(name: &'static str, like: &'static str, spec: &'static str) -> Case {
    let (os, runtime) = (("ubuntu", "22.04"), "containerd://2.1.4");
    Case { name, like, spec, os, gpu: "2330", runtime, kubelet: "v1.34.1", host: Preinstalled::Nothing }
}

/// Returns a case on top of a driver of the host.
const fn on_host(name: &'static str, like: &'static str, spec: &'static str) -> Case {
    Case { host: Preinstalled::Driver, ..case(name, like, spec) }
}

/// Returns a case with containerd 1.7.
const fn older(name: &'static str, like: &'static str, spec: &'static str) -> Case {
    Case { runtime: "containerd://1.7.27", ..case(name, like, spec) }
}

const COS: (&str, &str) = ("cos", "117");
const RHEL: (&str, &str) = ("rhel", "9.4");
const FILES_UBUNTU: &str = "{defaults: {driver: {container: {configMaps: {kernelModules: {name: parameters, keys: [nvidia.conf, nvidia-uvm.conf]}, repositories: {name: apt, keys: [internal.list]}, certificates: {name: ca, keys: [internal.crt, partner.crt]}}}}}}";
const FILES_RHEL: &str = "{defaults: {driver: {container: {configMaps: {repositories: {name: dnf, keys: [internal.repo]}, certificates: {name: ca, keys: [tls-ca-bundle.pem]}}}}}}";
const PROXY: &str = "{proxy: {httpProxy: \"http://proxy.example.com:3128\", httpsProxy: \"http://proxy.example.com:3128\", noProxy: \".svc,10.0.0.0/8\", trustedCAConfigMap: ca}}";
const RUN_FILE: &str = "{defaults: {driver: {source: RunFile, runFile: {sha256: a1}, version: 460.56, image: {repository: registry.example.com/run-file, tag: ubuntu20.04}}}}";
const RUN_FILE_URL: &str = "{defaults: {driver: {source: RunFile, runFile: {sha256: a1, url: \"https://mirror.example.com/cuda_8.0.61_375.26_linux.run\", installDir: /srv/nvidia}, image: {repository: registry.example.com/run-file, tag: ubuntu20.04}}, devicePlugin: {flavor: Google}}}";
const RUN_FILE_GKE: &str = "{defaults: {driver: {source: RunFile, runFile: {sha256: a1, installDir: /srv/nvidia}, version: 595.91.07, image: {repository: registry.example.com/run-file, tag: ubuntu22.04}}, devicePlugin: {flavor: Google}}}";
const RUN_FILE_RHEL: &str = "{defaults: {driver: {source: RunFile, runFile: {sha256: a1}, version: 580.173.02, image: {repository: registry.example.com/run-file, tag: rhel9}}}}";
const MIG: &str =
    "{defaults: {devicePlugin: {mig: {strategy: Single, layout: [{profiles: [{profile: 7g.80gb, count: 1}]}]}}}}";
const POOL: &str = "{images: {registry: mirror.example.com/nv, pullSecrets: [{name: pull}]}, pools: [{name: h100, match: {models: [nvidia-h100-80gb]}, driver: {env: [{name: HTTP_PROXY, value: \"http://proxy\"}]}, devicePlugin: {args: [--v=1], resources: {limits: {memory: 100Mi}}}}]}";
const SLES: &str = "{defaults: {driver: {version: 580.173.02, image: {repository: registry.example.com/nvidia/driver, tag: 580.173.02-sles15.7}}}}";

/// The driver's DaemonSets.
const DRIVER: &[Case] = &[
    Case { os: ("ubuntu", "20.04"), gpu: "102d", ..case("driver-container-kepler", "", "{}") },
    Case {
        os: ("ubuntu", "24.04"),
        ..case("driver-precompiled", "", "{defaults: {driver: {container: {precompiled: true}}}}")
    },
    case("driver-container-files-ubuntu", "", FILES_UBUNTU),
    Case { os: RHEL, ..case("driver-container-files-rhel", "whole-rhel", FILES_RHEL) },
    case("driver-proxy", "", PROXY),
    case("driver-gpudirect", "", "{defaults: {driver: {env: [{name: GPU_DIRECT_RDMA_ENABLED, value: \"true\"}]}}}"),
    Case { os: COS, gpu: "1eb8", ..case("driver-gke-cos", "", "{}") },
    Case {
        os: COS,
        gpu: "1eb8",
        ..case(
            "driver-gke-cos-latest",
            "driver-gke-cos",
            "{defaults: {driver: {source: CloudInstaller, cloudInstaller: {channel: Latest}}}}",
        )
    },
    Case {
        gpu: "1eb8",
        ..case("driver-gke-ubuntu", "driver-gke-cos", "{defaults: {driver: {source: CloudInstaller}}}")
    },
    Case {
        gpu: "1eb8",
        ..case(
            "driver-gke-ubuntu-version",
            "driver-gke-ubuntu",
            "{defaults: {driver: {source: CloudInstaller, version: 535.309.01}}}",
        )
    },
    Case { os: ("ubuntu", "20.04"), gpu: "13bb", ..case("driver-run-file", "driver-gke-ubuntu", RUN_FILE) },
    Case { os: ("ubuntu", "16.04"), gpu: "102d", ..case("driver-run-file-url", "driver-run-file", RUN_FILE_URL) },
];

/// The toolkit of each runtime and distribution, and the device plugin.
const TOOLKIT: &[Case] = &[
    case("toolkit-nri", "", "{defaults: {toolkit: {injection: NRI}}}"),
    older("toolkit-containerd", "", "{}"),
    older(
        "toolkit-containerd-class",
        "toolkit-containerd",
        "{defaults: {toolkit: {injection: Runtime, setAsDefault: false}}}",
    ),
    Case { runtime: "containerd://1.6.9", ..case("toolkit-containerd-default", "toolkit-containerd", "{}") },
    older("toolkit-folder", "toolkit-containerd", "{defaults: {toolkit: {installDir: /opt/nvidia}}}"),
    older("toolkit-microk8s", "toolkit-containerd", "{defaults: {toolkit: {distribution: MicroK8s}}}"),
    Case { kubelet: "v1.33.1+k0s", ..older("toolkit-k0s", "toolkit-containerd", "{}") },
    Case {
        runtime: "containerd://2.1.4-k3s1",
        kubelet: "v1.34.1+k3s1",
        ..case("toolkit-k3s", "toolkit-containerd", "{defaults: {toolkit: {injection: Runtime}}}")
    },
    Case {
        runtime: "containerd://1.7.27-k3s1",
        kubelet: "v1.33.1+rke2r1",
        ..case("toolkit-rke2", "toolkit-k3s", "{}")
    },
    Case {
        runtime: "docker://27.0.3",
        ..case("toolkit-docker", "toolkit-containerd-default", "{defaults: {toolkit: {runtimeClass: gpu}}}")
    },
    Case {
        runtime: "cri-o://1.34.1",
        ..case("toolkit-crio", "toolkit-containerd-default", "{defaults: {toolkit: {injection: Runtime}}}")
    },
    Case { host: Preinstalled::Driver, ..older("host-runtime", "toolkit-containerd", "{}") },
];

/// The stages on top of a driver, with the ways of sharing GPUs.
const PLUGIN: &[Case] = &[
    on_host("host-cdi", "", "{}"),
    Case {
        runtime: "containerd://1.7.27",
        ..on_host("host-brings-toolkit", "host-cdi", "{defaults: {toolkit: {injection: None}}}")
    },
    Case {
        runtime: "docker://27.0.3",
        host: Preinstalled::DriverAndRuntime,
        ..case("host-brings-runtime", "host-brings-toolkit", "{}")
    },
    on_host("host-mig", "host-cdi", MIG),
    case("sharing-mps", "", "{defaults: {devicePlugin: {sharing: {mps: {replicas: 2}}}}}"),
    on_host("host-mps", "sharing-mps", "{defaults: {devicePlugin: {sharing: {mps: {replicas: 4}}}}}"),
    case(
        "sharing-time-slicing",
        "",
        "{defaults: {devicePlugin: {sharing: {timeSlicing: {replicas: 4}}, mig: {strategy: Single}, env: [{name: PASS_DEVICE_SPECS, value: \"true\"}]}}}",
    ),
    Case {
        os: COS,
        ..case("cos-nvidia", "", "{defaults: {driver: {source: CloudInstaller}, devicePlugin: {flavor: Nvidia}}}")
    },
    Case { os: COS, ..case("cos-google", "", "{}") },
    case("ubuntu-google", "cos-google", "{defaults: {driver: {source: CloudInstaller}}}"),
    Case { runtime: "docker://27.0.3", ..case("run-file-google", "cos-google", RUN_FILE_GKE) },
    Case {
        host: Preinstalled::GoogleDriver,
        ..case(
            "sharing-gke",
            "cos-google",
            "{defaults: {devicePlugin: {flavor: Google, sharing: {timeSlicing: {replicas: 3}}, google: {metricsPort: 2112}, args: [-v=10]}}}",
        )
    },
];

/// All stages.
const WHOLE: &[Case] = &[
    case("install", "", POOL),
    // SELinux and the subscription of RHEL, and the same with CRI-O, which mounts the subscription itself. Verified by
    // these files only: no such host was available.
    Case { os: RHEL, ..case("whole-rhel", "", "{}") },
    Case { os: RHEL, runtime: "cri-o://1.34.1", ..case("whole-rhel-crio", "whole-rhel", "{}") },
    Case { os: ("sles", "15.7"), ..older("whole-sles", "toolkit-containerd", SLES) },
];

/// Combinations without a file of their own, whose containers have other privileges.
const PRIVILEGES: &[Case] = &[
    Case { os: RHEL, ..case("driver-run-file-rhel", "", RUN_FILE_RHEL) },
    Case { os: RHEL, ..case("toolkit-nri-rhel", "", "{defaults: {toolkit: {injection: NRI}}}") },
    Case { os: RHEL, ..older("toolkit-containerd-rhel", "", "{}") },
    Case { os: RHEL, ..on_host("host-mig-rhel", "", MIG) },
    case("driver-container-mig", "", MIG),
    Case { os: RHEL, ..case("sharing-mps-rhel", "", "{defaults: {devicePlugin: {sharing: {mps: {replicas: 2}}}}}") },
];

/// Returns the settled fleet of a case.
fn settled(case: &Case) -> Sim {
    let mut sim = Sim::new().gpu_node("a", case.gpu, 1);
    if case.host != Preinstalled::Nothing {
        sim.host_driver("a", "580.1.1", true);
    }
    if case.host == Preinstalled::GoogleDriver {
        sim.report("a").driver.installed[0].root = "/home/kubernetes/bin/nvidia".into();
    }
    if case.host == Preinstalled::DriverAndRuntime {
        let (file, handler) = ("/etc/docker/daemon.json".to_owned(), "nvidia".to_owned());
        sim.report("a").runtimes = vec![HostRuntime { file, handler, default: true }];
    }
    let os = &mut sim.report("a").os;
    (os.id, os.version_id) = (case.os.0.into(), case.os.1.into());
    let node = sim.node_mut("a");
    (node.runtime, node.kubelet) = (case.runtime.into(), case.kubelet.into());
    if case.spec.contains("CloudInstaller") {
        sim.label("a", NODE_POOL, Some("gpus"));
    }
    sim.apply_policy("all", case.spec);
    sim.settle();
    assert!(sim.status("a").is_ready(), "{}: {:?}", case.name, sim.status("a"));
    sim
}

/// Returns the settled fleet of every case by its name, that of the default policy first.
pub(crate) fn every_case() -> Vec<(&'static str, Sim)> {
    let cases = [DRIVER, TOOLKIT, PLUGIN, WHOLE, PRIVILEGES].concat();
    let settled = cases.into_iter().map(|case| (case.name, settled(&case)));
    [("default", default_fleet())].into_iter().chain(settled).collect()
}

fn check(cases: &[Case], stages: &[Stage]) {
    for case in cases {
        let like = [DRIVER, TOOLKIT, PLUGIN, WHOLE].concat().into_iter().find(|other| other.name == case.like);
        let base = Base::of(&like.map_or_else(default_fleet, |like| settled(&like)));
        review(case.name, &settled(case), stages, &base);
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
    check(DRIVER, &[Stage::Driver]);
}

#[test]
fn the_pods_for_every_runtime_are_as_reviewed() {
    check(TOOLKIT, &[Stage::Toolkit, Stage::DevicePlugin]);
}

#[test]
fn the_pods_on_top_of_a_driver_are_as_reviewed() {
    check(PLUGIN, &[Stage::Toolkit, Stage::Mps, Stage::DevicePlugin]);
}

#[test]
fn all_pods_of_a_pool_and_of_other_systems_are_as_reviewed() {
    check(WHOLE, &[Stage::Driver, Stage::Toolkit, Stage::DevicePlugin]);
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

#[test]
fn mounts_of_the_subscription_only_differ_in_the_driver() {
    let mut sim = Sim::new().gpu_node("a", "2330", 1).gpu_node("b", "2330", 1);
    for (name, runtime) in [("a", "containerd://2.1.4"), ("b", "cri-o://1.34.1")] {
        let os = &mut sim.report(name).os;
        (os.id, os.version_id) = ("rhel".into(), "9.4".into());
        sim.node_mut(name).runtime = runtime.into();
    }
    sim.apply_policy("all", "{}");
    sim.settle();
    let sets = |stage| sim.sets_of(stage).len();
    assert_eq!([Stage::Driver, Stage::Toolkit, Stage::DevicePlugin].map(sets), [2, 1, 1], "{:?}", sim.sets.keys());
}

#[test]
fn the_proxy_is_set_in_all_containers_but_the_operators_own() {
    let spec = "{proxy: {httpsProxy: \"http://proxy.example.com:3128\", trustedCAConfigMap: ca}}";
    let mut sim = Sim::settled_fleet(spec, &["a"]);
    sim.join("cos", "1eb8", 1);
    sim.report("cos").os.id = "cos".into();
    sim.settle();
    let mut count = 0;
    for set in sim.sets.keys() {
        let pod = sim.template(set);
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
