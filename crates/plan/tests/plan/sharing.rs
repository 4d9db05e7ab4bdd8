//! Sharing and MIG: the expected resources of a node follow from how its device plugin offers its GPUs, and a change
//! only updates the plugin.

use crate::sim::{Faults, Sim};
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
fn expected_resources_are_gpus_times_the_pods_that_share_each() {
    let renamed = "{defaults: {devicePlugin: {sharing: {timeSlicing: {replicas: 4, renameByDefault: true}}}}}";
    for (policy, resource, count) in [
        (sliced(4), "nvidia.com/gpu", 32),
        (mps(4), "nvidia.com/gpu", 32),
        (renamed.into(), "nvidia.com/gpu.shared", 32),
        // Kubelet writes these with a suffix: "1k" and "2k".
        (sliced(125), "nvidia.com/gpu", 1000),
        (sliced(250), "nvidia.com/gpu", 2000),
    ] {
        let sim = Sim::settled_fleet(&policy, &["a", "b"]);
        assert_eq!((sim.status("a").phase, gpus(&sim, "a")), (Phase::Ready, format!("{count}/{count}")), "{policy}");
        assert_eq!(sim.node("a").allocatable.amount(resource), count, "{policy}");
        let status = sim.policy_status("all");
        assert_eq!(status.summary.gpus, format!("{0}/{0}", 2 * count), "{policy}");
        let resources = sim.status("a").gpus.resources;
        assert_eq!(resources.get(resource).copied(), (resource != "nvidia.com/gpu").then_some(count), "{policy}");
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
fn a_node_that_does_not_share_as_specified_is_not_ready() {
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
fn a_change_of_sharing_waits_for_no_gpu_pod() {
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
fn a_change_of_the_plugin_does_not_update_the_control_daemon() {
    let mut sim = Sim::settled_fleet(&mps(2), &["a"]);
    let daemon = sim.sets_of(Stage::Mps).into_iter().next().expect("a control daemon").clone();
    assert_eq!(gpus(&sim, "a"), "16/16");
    for change in ["env: [{name: EXAMPLE, value: \"1\"}]", "args: [--example]"] {
        let plugin = sim.node("a").labels[keys::DEVICE_PLUGIN].clone();
        sim.apply_policy("all", &mps(2).replace("sharing:", &format!("{change}, sharing:")));
        sim.settle();
        assert_eq!(sim.sets_of(Stage::Mps), [&daemon], "{change}");
        assert_eq!(sim.sets_of(Stage::DevicePlugin).len(), 1);
        assert_ne!(sim.node("a").labels[keys::DEVICE_PLUGIN], plugin, "{change}");
    }
    sim.apply_policy("all", "{}");
    sim.settle();
    assert!(sim.sets_of(Stage::Mps).is_empty() && !sim.node("a").labels.contains_key(keys::MPS));
    assert_eq!(gpus(&sim, "a"), "8/8");
    sim.delete_policy("all");
    sim.settle();
    assert!(sim.node("a").owned_labels.is_empty());
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
fn a_node_in_mig_mode_is_not_ready_without_mig_devices() {
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
fn an_external_plugin_is_waited_for() {
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
