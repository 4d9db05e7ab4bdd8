//! Sharing and MIG: the expected resources of a node follow from how its device plugin offers its GPUs, and a change
//! only updates the plugin.

use crate::{
    reviewed::review,
    sim::{Faults, Sim},
};
use gpu_operator_crd::{Phase, keys, policy::Stage, reason::Reason, report::MigDevices};
use gpu_operator_plan::world::ResourceLayout;
use kube::ResourceExt;

const GKE_ROOT: &str = "/home/kubernetes/bin/nvidia";

fn sliced(replicas: u32) -> String {
    format!("{{defaults: {{devicePlugin: {{sharing: {{timeSlicing: {{replicas: {replicas}}}}}}}}}}}")
}

fn mps(replicas: u32) -> String {
    format!("{{defaults: {{devicePlugin: {{sharing: {{mps: {{replicas: {replicas}}}}}}}}}}}")
}

/// Returns allocatable and expected GPUs as printed.
fn gpus(sim: &Sim, node: &str) -> String {
    sim.status(node).gpus.summary
}

fn partition(sim: &mut Sim, node: &str, gpu: usize, profiles: &[(&str, u32)]) {
    let devices = profiles.iter().map(|(profile, count)| MigDevices {
        profile: (*profile).into(),
        count: *count,
        attributes: None,
    });
    sim.report(node).gpus[gpu].mig_devices = Some(devices.collect());
}

/// Installs a host driver in the directory of Google's installers.
fn google(sim: &mut Sim, node: &str) {
    sim.host_driver(node, "580.1.1", true);
    for installed in &mut sim.report(node).driver.installed {
        installed.root = GKE_ROOT.into();
    }
}

#[test]
fn the_expected_resources_are_the_gpus_times_the_pods_that_share_each() {
    let renamed = "{defaults: {devicePlugin: {sharing: {timeSlicing: {replicas: 4, renameByDefault: true}}}}}";
    for (policy, resource) in
        [(sliced(4), "nvidia.com/gpu"), (mps(4), "nvidia.com/gpu"), (renamed.into(), "nvidia.com/gpu.shared")]
    {
        let sim = Sim::settled_fleet(&policy, &["a", "b"]);
        assert_eq!((sim.status("a").phase, gpus(&sim, "a").as_str()), (Phase::Ready, "32/32"), "{policy}");
        assert_eq!(sim.node("a").allocatable.amount(resource), 32, "{policy}");
        let status = sim.policy_status("all");
        assert_eq!(status.summary.gpus, "64/64", "{policy}");
        let resources = sim.status("a").gpus.resources;
        assert_eq!(resources.get(resource).copied(), (resource != "nvidia.com/gpu").then_some(32), "{policy}");
    }
}

#[test]
fn the_layout_is_read_from_the_plugins_pod() {
    for (plugin, installed_by_google) in [
        ("{}", false),
        ("{sharing: {timeSlicing: {replicas: 4, renameByDefault: true}}, mig: {strategy: Mixed}}", false),
        ("{sharing: {mps: {replicas: 3, renameByDefault: true}}, mig: {strategy: Single}}", false),
        ("{sharing: {mps: {replicas: 2}}}", false),
        ("{sharing: {timeSlicing: {replicas: 3}}}", true),
    ] {
        let mut sim =
            Sim::new().policy("all", &format!("{{defaults: {{devicePlugin: {plugin}}}}}")).gpu_node("a", "2330", 8);
        if installed_by_google {
            google(&mut sim, "a");
        }
        sim.settle();
        let pod = sim.template(&sim.sets_of(Stage::DevicePlugin)[0].name_any());
        let wanted = ResourceLayout::of(&serde_yaml::from_str(plugin).expect("a plugin"));
        assert_eq!(ResourceLayout::of_pod(pod), wanted, "{plugin}");
    }
}

#[test]
fn a_node_whose_allocatable_is_written_with_a_suffix_becomes_ready() {
    // 8 GPUs for 125 pods each are allocatable as "1k".
    let mut sim = Sim::settled_fleet(&sliced(125), &["a", "b"]);
    assert_eq!((sim.status("a").phase, gpus(&sim, "a").as_str()), (Phase::Ready, "1000/1000"));
    sim.apply_policy("all", &sliced(250));
    sim.settle();
    assert_eq!((sim.status("b").phase, gpus(&sim, "b").as_str()), (Phase::Ready, "2000/2000"));
}

#[test]
fn a_node_whose_plugin_does_not_share_gpus_as_specified_is_not_ready() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", &sliced(4));
    sim.faults.insert("a".into(), Faults { publishes: Some(2), ..Faults::default() });
    sim.run(40);
    let status = sim.status("a");
    assert_eq!(
        status.reason(),
        Some(Reason::WaitingForAllocatable),
        "8 are allocatable, which is sufficient only without sharing"
    );
    assert!(status.message.starts_with("8 of 32 nvidia.com/gpu are allocatable"), "{}", status.message);
}

#[test]
fn a_change_of_sharing_only_updates_the_plugin_one_node_at_a_time_without_waiting_for_gpu_pods() {
    let mut sim = Sim::settled_fleet("{}", &["a", "b", "c"]);
    for node in ["a", "b", "c"] {
        sim.gpu_pods.insert(node.into(), vec!["default/training".into()]);
    }
    let below = |sim: &Sim| -> Vec<_> {
        let label = |node: &str, key: &str| sim.node(node).labels.get(key).cloned();
        ["a", "b", "c"].into_iter().map(|node| (label(node, keys::DRIVER), label(node, keys::TOOLKIT))).collect()
    };
    let before = below(&sim);
    for (policy, expected) in [(sliced(4), 32), (sliced(2), 16), ("{}".to_owned(), 8)] {
        sim.apply_policy("all", &policy);
        for _ in 0..120 {
            sim.step();
            sim.sleep(1);
            let away = ["a", "b", "c"].into_iter().filter(|node| sim.status(*node).phase != Phase::Ready);
            assert!(away.count() <= 1, "{policy}: a pending node is assessed by its current layout");
        }
        sim.settle();
        assert_eq!(gpus(&sim, "c"), format!("{expected}/{expected}"));
        assert_eq!(below(&sim), before, "{policy}");
    }
}

#[test]
fn mps_has_a_control_daemon_that_a_change_of_the_plugins_environment_does_not_update() {
    let mut sim = Sim::settled_fleet(&mps(2), &["a"]);
    let daemon = sim.sets_of(Stage::Mps).into_iter().next().expect("a control daemon").clone();
    assert_eq!(gpus(&sim, "a"), "16/16");
    sim.apply_policy(
        "all",
        "{defaults: {devicePlugin: {sharing: {mps: {replicas: 2}}, env: [{name: EXAMPLE, value: \"1\"}]}}}",
    );
    sim.settle();
    assert_eq!(sim.sets_of(Stage::Mps), [&daemon], "the plugin's environment does not affect the control daemon");
    assert_eq!(sim.sets_of(Stage::DevicePlugin).len(), 1);
    sim.apply_policy("all", "{}");
    sim.settle();
    assert!(sim.sets_of(Stage::Mps).is_empty() && !sim.node("a").labels.contains_key(keys::MPS));
    assert_eq!(gpus(&sim, "a"), "8/8");
    sim.delete_policy("all");
    sim.settle();
    assert_eq!(sim.node("a").labels.len(), 1);
}

#[test]
fn a_driver_is_updated_once_the_control_daemon_has_released_it() {
    let mut sim = Sim::settled_fleet(&mps(2), &["a"]);
    sim.apply_policy(
        "all",
        "{defaults: {driver: {version: 590.10.01}, devicePlugin: {sharing: {mps: {replicas: 2}}}}}",
    );
    sim.settle();
    assert_eq!((sim.status("a").phase, gpus(&sim, "a").as_str()), (Phase::Ready, "16/16"));
    assert_eq!(sim.report("a").driver.loaded.as_deref(), Some("590.10.01"));
}

#[test]
fn mig_devices_are_expected_as_reported_by_nvml() {
    for (strategy, sharing, expected) in [
        ("None", "", "2/2"),
        ("Single", "", "14/14"),
        ("Mixed", "", "14/14"),
        ("Mixed", ", sharing: {timeSlicing: {replicas: 2}}", "28/28"),
    ] {
        let mut sim = Sim::new()
            .policy("all", &format!("{{defaults: {{devicePlugin: {{mig: {{strategy: {strategy}}}{sharing}}}}}}}"));
        sim.join("a", "2330", 2);
        partition(&mut sim, "a", 0, &[("1g.10gb", 7)]);
        partition(&mut sim, "a", 1, &[("1g.10gb", 7)]);
        sim.settle();
        assert_eq!((sim.status("a").phase, gpus(&sim, "a").as_str()), (Phase::Ready, expected), "{strategy}{sharing}");
    }
}

#[test]
fn a_node_with_mig_enabled_is_not_ready_until_it_has_mig_devices() {
    let mut sim = Sim::new().policy("all", "{defaults: {devicePlugin: {mig: {strategy: Mixed}}}}");
    sim.join("a", "2330", 1);
    partition(&mut sim, "a", 0, &[]);
    sim.run(40);
    let status = sim.status("a");
    assert_eq!(status.reason(), Some(Reason::WaitingForAllocatable));
    assert!(status.message.contains("have no MIG device"), "{}", status.message);
    partition(&mut sim, "a", 0, &[("3g.40gb", 2)]);
    sim.settle();
    assert_eq!((sim.status("a").phase, gpus(&sim, "a").as_str()), (Phase::Ready, "2/2"));
    assert_eq!(sim.status("a").gpus.resources["nvidia.com/mig-3g.40gb"], 2);
}

#[test]
fn googles_plugin_is_used_with_googles_driver_and_needs_no_toolkit() {
    let mut sim = Sim::new()
        .gpu_node("cos", "1eb8", 2)
        .gpu_node("other", "1eb8", 1)
        .policy("all", "{defaults: {devicePlugin: {sharing: {timeSlicing: {replicas: 3}}}}}");
    google(&mut sim, "cos");
    sim.settle();
    assert_eq!((sim.status("cos").phase, gpus(&sim, "cos").as_str()), (Phase::Ready, "6/6"));
    assert!(!sim.node("cos").labels.contains_key(keys::TOOLKIT));
    assert!(sim.node("other").labels.contains_key(keys::TOOLKIT));
    let images: Vec<String> = sim.sets_of(Stage::DevicePlugin).into_iter().map(Sim::image).collect();
    assert!(
        images.iter().any(|image| image.starts_with("gcr.io/gke-release/nvidia-gpu-device-plugin@sha256:")),
        "{images:?}"
    );
}

#[test]
fn a_plugin_that_does_not_support_the_driver_is_rejected() {
    let mut sim = Sim::new().gpu_node("a", "1eb8", 1).policy("all", "{defaults: {devicePlugin: {flavor: Gke}}}");
    sim.run(20);
    assert_eq!(sim.status("a").reason(), Some(Reason::DevicePluginUnsupported));
    assert_eq!(sim.condition("all", "Accepted").0, "False");
    assert!(sim.sets.is_empty());
}

#[test]
fn a_node_with_a_third_party_plugin_is_ready_according_to_what_the_plugin_offers() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{defaults: {devicePlugin: {flavor: External}}}");
    sim.run(40);
    assert!(sim.sets_of(Stage::DevicePlugin).is_empty());
    assert_eq!(sim.sets_of(Stage::Driver).len(), 1);
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::DevicePlugin, Some(Reason::WaitingForAllocatable)));
    assert!(status.message.contains("flavor: External"), "{}", status.message);
    let file = "{metadata: {name: plugin, namespace: kube-system}, spec: {selector: {}, template: {spec: {volumes: [{name: s, hostPath: {path: /var/lib/kubelet/device-plugins}}], containers: [{name: c, image: nvidia/k8s-device-plugin:v1}]}}}}";
    sim.foreign_sets.insert("kube-system/plugin".into(), serde_yaml::from_str(file).expect("a DaemonSet"));
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
}

#[test]
fn a_plugin_flag_updates_the_plugin_but_not_the_control_daemon() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", &mps(2));
    sim.settle();
    let before = sim.node("a").labels.clone();
    sim.apply_policy("all", &mps(2).replace("sharing:", "flags: {passDeviceSpecs: true}, sharing:"));
    sim.settle();
    let changed = |key: &str| sim.node("a").labels.get(key) != before.get(key);
    assert!(changed(Stage::DevicePlugin.key()) && !changed(Stage::Mps.key()));
}

#[test]
fn the_pods_of_all_sharing_strategies_are_as_reviewed() {
    for (name, policy, stages) in [
        (
            "time-slicing",
            "{sharing: {timeSlicing: {replicas: 4}}, mig: {strategy: Single}, flags: {failOnInitError: false, passDeviceSpecs: true, deviceIDStrategy: Index}}",
            &[Stage::DevicePlugin][..],
        ),
        ("mps", "{sharing: {mps: {replicas: 2}}}", &[Stage::Mps, Stage::DevicePlugin]),
        (
            "gke",
            "{flavor: Gke, sharing: {timeSlicing: {replicas: 3}}, containerMetrics: {port: 2112}, healthMonitoring: true, args: [-v=10]}",
            &[Stage::DevicePlugin][..],
        ),
    ] {
        let mut sim =
            Sim::new().gpu_node("a", "2330", 8).policy("all", &format!("{{defaults: {{devicePlugin: {policy}}}}}"));
        if name == "gke" {
            google(&mut sim, "a");
        }
        sim.settle();
        assert_eq!(sim.status("a").phase, Phase::Ready, "{name}");
        review(&format!("sharing-{name}"), &sim, stages);
    }
}
