//! Device plugins and DRA drivers that this operator has not placed and that no name identifies: they are recognized by what they do.

use gpu_operator_crd::{Phase, keys, policy::Stage, reason::Reason};
use gpu_operator_plan::world::GpuSlice;

use crate::sim::{Faults, Sim};

const TAKE_OVER: &str = "{defaults: {foreignStack: TakeOver}}";

/// Adds a pod of a DaemonSet (`namespace/name`) that mounts kubelet's directory of device plugins.
fn plugin_pod(sim: &mut Sim, node: &str, set: &str) {
    let (namespace, set) = set.split_once('/').expect("a namespace");
    let pod = format!(
        "{{metadata: {{name: {set}-x, namespace: {namespace}, ownerReferences: [{{apiVersion: apps/v1, kind: DaemonSet, name: {set}, uid: u}}]}}, spec: {{nodeName: {node}, volumes: [{{name: s, hostPath: {{path: /var/lib/kubelet/device-plugins}}}}], containers: [{{name: c, image: x, volumeMounts: [{{name: s, mountPath: /var/lib/kubelet/device-plugins}}]}}]}}}}"
    );
    sim.foreign_pods.push(serde_yaml::from_str(&pod).expect("a pod"));
}

/// Returns node `a` with eight GPUs and a driver on the host, a device plugin that offers these units, and pods of device plugins.
pub fn served(units: u32, sets: &[&str], policy: &str) -> Sim {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    sim.host_driver("a", "580.1.1", true);
    sim.unnamed_plugins.insert("a".into(), units);
    sim.node_mut("a").allocatable = units.into();
    for set in sets {
        plugin_pod(&mut sim, "a", set);
    }
    sim.policy("all", policy)
}

/// Returns the number of stages of this operator that the node's labels select.
fn stages(sim: &Sim) -> usize {
    Stage::ALL.into_iter().filter(|stage| sim.node("a").labels.contains_key(stage.key())).count()
}

fn state(sim: &Sim) -> (Phase, Reason, String) {
    let status = sim.status("a");
    (status.phase, status.reason().expect("a reason"), status.message)
}

#[test]
fn a_device_plugin_of_any_name_is_known_by_what_it_does() {
    let (hami, rdma) = ("kube-system/hami-device-plugin", "network/rdma");
    for (units, sets, summary, words) in [
        (80, &[hami][..], "80/8", "DaemonSet kube-system/hami-device-plugin has a device plugin on this node"),
        (8, &[rdma, hami], "8/8", "on this node: kube-system/hami-device-plugin, network/rdma"),
        (8, &[], "8/8", "no DaemonSet has a device plugin on this node"),
    ] {
        let mut sim = served(units, sets, "{}");
        sim.steps(100);
        let (phase, reason, message) = state(&sim);
        assert_eq!((phase, reason, stages(&sim)), (Phase::DevicePlugin, Reason::ForeignDevicePlugin, 0), "{message}");
        assert!(message.contains(words) && message.contains("two minutes"), "{message}");
        assert_eq!((sim.status("a").deadline, sim.status("a").foreign.len()), (None, 0));
        sim.settle();
        let (phase, reason, message) = state(&sim);
        assert_eq!((phase, reason, stages(&sim)), (Phase::Ready, Reason::ForeignDevicePlugin, 0), "{message}");
        assert!(message.contains(words), "{message}");
        assert_eq!(sim.status("a").gpus.summary, summary);
        assert_eq!(sim.condition("all", "Ready").0, "True");
    }
}

#[test]
fn such_a_plugin_keeps_its_node_until_it_is_taken_over() {
    let mut sim = served(8, &[], "{}");
    sim.settle();
    let units = std::mem::take(&mut sim.unnamed_plugins);
    sim.run(40);
    let (phase, reason, message) = state(&sim);
    assert_eq!((phase, reason, stages(&sim)), (Phase::DevicePlugin, Reason::WaitingForAllocatable, 0), "{message}");
    assert!(message.contains("foreignStack: TakeOver"), "{message}");
    sim.unnamed_plugins.clone_from(&units);
    sim.steps(10);
    assert_eq!(state(&sim).0, Phase::Ready, "it is the same plugin");
    sim.apply_policy("all", TAKE_OVER);
    sim.settle();
    let (phase, reason, message) = state(&sim);
    assert_eq!((phase, reason, stages(&sim)), (Phase::Ready, Reason::ForeignDevicePlugin, 0), "{message}");
    assert!(message.contains("once a third-party device plugin is gone"), "{message}");
    sim.unnamed_plugins.clear();
    sim.settle();
    assert_eq!((state(&sim).1, stages(&sim)), (Reason::AllGpusAllocatable, 2));
    assert!(sim.status("a").foreign.is_empty());
}

#[test]
fn plugins_of_other_devices_are_nobody() {
    for (when, units) in [("before", 0), ("after", 8)] {
        let mut sim = if units == 0 { served(0, &["network/rdma"], "{}") } else { Sim::settled_fleet("{}", &["a"]) };
        sim.unnamed_plugins.clear();
        plugin_pod(&mut sim, "a", "network/sriov");
        sim.settle();
        sim.sleep(600);
        sim.settle();
        assert_eq!(state(&sim).1, Reason::AllGpusAllocatable, "{when}");
        assert!(stages(&sim) > 1 && sim.status("a").foreign.is_empty(), "{when}");
    }
}

#[test]
fn a_reinstallation_takes_nobody_for_a_third_party() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    plugin_pod(&mut sim, "a", "network/rdma");
    sim.delete_policy("all");
    sim.sleep(120);
    sim.settle();
    assert_eq!(stages(&sim), 0);
    // Kubelet has not withdrawn the GPUs of the former plugin yet.
    sim.node_mut("a").allocatable = 8.into();
    sim.faults.insert("a".into(), Faults { late_kubelet: true, ..Faults::default() });
    sim.apply_policy("all", "{}");
    sim.steps(60);
    let (phase, reason, message) = state(&sim);
    assert_eq!((phase, reason), (Phase::DevicePlugin, Reason::ForeignDevicePlugin), "{message}");
    assert!(!sim.node("a").labels.contains_key(keys::DEVICE_PLUGIN));
    sim.faults.clear();
    sim.settle();
    assert_eq!((state(&sim).1, stages(&sim)), (Reason::AllGpusAllocatable, 3));
    assert!(sim.status("a").foreign.is_empty());
}

#[test]
fn a_plugin_that_the_policy_expects_may_offer_more() {
    let mut sim = served(32, &[], "{defaults: {devicePlugin: {flavor: External}}}");
    sim.steps(10);
    let (phase, reason, message) = state(&sim);
    assert_eq!((phase, reason), (Phase::Ready, Reason::AllGpusAllocatable), "{message}");
    assert!(message.contains("32 units of 8 GPUs are allocatable"), "{message}");
}

#[test]
fn more_gpus_than_the_node_has_are_not_ready_after_a_minute() {
    let sliced = "{defaults: {devicePlugin: {sharing: {timeSlicing: {replicas: 4}}}}}";
    for (policy, units, whole) in [("{}", 80, 8), (sliced, 40, 32)] {
        let mut sim = Sim::settled_fleet(policy, &["a"]);
        plugin_pod(&mut sim, "a", "kube-system/hami-device-plugin");
        sim.unnamed_plugins.insert("a".into(), units);
        sim.steps(55);
        assert_eq!(state(&sim).0, Phase::Ready, "it may be a restart");
        sim.steps(15);
        let (phase, reason, message) = state(&sim);
        assert_eq!((phase, reason, stages(&sim)), (Phase::DevicePlugin, Reason::TooManyGpus, 3), "{message}");
        let words = format!("{units} nvidia.com/gpu are allocatable, but the node's GPUs make {whole}");
        assert!(message.contains(&words) && message.contains("kube-system/hami-device-plugin"), "{message}");
        assert_eq!(sim.condition("all", "Ready").0, "False");
        sim.unnamed_plugins.clear();
        sim.settle();
        assert_eq!(state(&sim).1, Reason::AllGpusAllocatable);
    }
}

#[test]
fn a_pools_number_of_gpus_and_other_resources_are_no_limit() {
    let mut sim = Sim::settled_fleet("{pools: [{name: p, gpusPerNode: 6}]}", &["a"]);
    sim.node_mut("a").allocatable = [("nvidia.com/gpu", 8), ("nvidia.com/hostdev", 99)].into_iter().collect();
    sim.steps(90);
    assert_eq!((state(&sim).0, sim.status("a").gpus.summary.as_str()), (Phase::Ready, "8/6"));
}

/// Adds a slice of a node's GPUs.
fn slice(sim: &mut Sim, node: &str) {
    sim.gpu_slices.insert(format!("{node}-gpu.nvidia.com-x"), GpuSlice { node: node.into(), ..GpuSlice::default() });
}

#[test]
fn a_dra_driver_is_known_by_its_slices() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).gpu_node("plain", "2330", 8);
    slice(&mut sim, "a");
    sim.apply_policy("all", "{}");
    sim.settle();
    let (phase, reason, message) = state(&sim);
    assert_eq!((phase, reason, stages(&sim)), (Phase::DevicePlugin, Reason::ForeignDraDriver, 1), "{message}");
    assert!(message.contains("DRA driver gpu.nvidia.com allocates the node's GPUs"), "{message}");
    assert_eq!(sim.status("a").foreign[keys::DRA_DRIVER], "gpu.nvidia.com");
    assert_eq!(sim.status("plain").reason(), Some(Reason::AllGpusAllocatable));
    assert!(sim.world().gpu_requests().claims);
    // Kubelet deletes the slices of its node when it starts.
    sim.gpu_slices.clear();
    sim.run(40);
    assert_eq!((state(&sim).1, stages(&sim)), (Reason::WaitingForAllocatable, 1));
    assert!(state(&sim).2.contains("foreignStack: TakeOver"), "{}", state(&sim).2);
    sim.apply_policy("all", TAKE_OVER);
    sim.settle();
    assert_eq!((state(&sim).1, stages(&sim)), (Reason::AllGpusAllocatable, 3));
    // It returns beside the plugin.
    slice(&mut sim, "a");
    sim.settle();
    let (phase, reason, message) = state(&sim);
    assert_eq!((phase, reason, stages(&sim)), (Phase::Ready, Reason::StackConflict, 3), "{message}");
    assert!(message.contains("DRA driver gpu.nvidia.com allocates this node's GPUs"), "{message}");
}
