//! The GPUs that are expected on a node: how many, which are missing, replaced or passed through to virtual machines.

use crate::sim::{Faults, Sim};
use gpu_operator_crd::{NodeName, Phase, keys, reason::Reason};
use gpu_operator_plan::Plan;

pub(crate) fn reported(sim: &Sim, node: impl Into<NodeName>) -> (Phase, Reason, String) {
    let status = sim.status(node);
    (status.phase, status.reason().expect("a reason"), status.message)
}

/// Returns a node with this number of GPUs on the bus, or without a report, and the expected number from pool,
/// annotation and cloud.
fn expecting(on_bus: Option<u32>, pool: Option<u32>, annotated: Option<u32>, cloud: Option<u32>) -> Sim {
    let mut sim = Sim::new();
    if let Some(count) = on_bus {
        sim.join("a", "1eb8", count);
    } else {
        sim.join_plain("a");
        sim.faults.insert("a".into(), Faults { no_probe: true, ..Faults::default() });
    }
    sim.label("a", "cloud.google.com/gke-accelerator", Some("nvidia-tesla-t4"));
    if let Some(count) = cloud {
        sim.label("a", "cloud.google.com/gke-accelerator-count", Some(&count.to_string()));
    }
    sim.node_mut("a").gpu_count = annotated.map(|count| count.to_string());
    let expected_resources = pool.map_or_else(String::new, |count| format!(", gpusPerNode: {count}"));
    sim.apply_policy("all", &format!("{{pools: [{{name: p{expected_resources}}}]}}"));
    // This is longer than the operator waits for a probe.
    sim.steps(100);
    sim
}

#[test]
fn expected_gpus_come_from_annotation_pool_history_or_cloud() {
    let (ready, missing, silent) = (Reason::AllGpusAllocatable, Reason::GpuMissing, Reason::ProbeMissing);
    for (on_bus, pool, annotated, cloud, expected, reason) in [
        (Some(4), None, None, None, Some(4), ready),
        (Some(4), None, None, Some(8), Some(4), ready),
        (Some(4), Some(8), None, Some(2), Some(8), missing),
        (Some(4), Some(8), Some(4), Some(2), Some(4), ready),
        (None, Some(8), None, Some(2), Some(8), silent),
        (None, None, None, Some(2), Some(2), silent),
        (None, None, None, None, None, silent),
    ] {
        let sim = expecting(on_bus, pool, annotated, cloud);
        let status = sim.status("a");
        let found = (status.gpus.expected, status.reason());
        assert_eq!(found, (expected, Some(reason)), "{on_bus:?} {pool:?} {annotated:?} {cloud:?}: {status:?}");
        assert_eq!(status.phase == Phase::Ready, reason == ready, "a node with unknown GPUs is not ready");
        assert_eq!(sim.condition("all", "Ready").0, if reason == ready { "True" } else { "False" });
    }
}

#[test]
fn a_missing_gpu_is_reported_by_address_until_the_count_is_set() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    let gone = sim.report("a").gpus.remove(3).pci_address;
    sim.report("a").boot_id = "boot-2".into();
    sim.settle();
    let (phase, reason, message) = reported(&sim, "a");
    assert_eq!((phase, reason), (Phase::DevicePlugin, Reason::GpuMissing), "{message}");
    assert!(message.contains("7 of 8") && message.contains(&gone) && message.contains(keys::GPU_COUNT), "{message}");
    sim.node_mut("a").gpu_count = Some("7".into());
    sim.settle();
    assert_eq!(reported(&sim, "a").1, Reason::AllGpusAllocatable);
    sim.node_mut("a").gpu_count = None;
    sim.settle();
    assert_eq!(
        (reported(&sim, "a").1, sim.status("a").gpus.most_seen),
        (Reason::AllGpusAllocatable, Some(7)),
        "the former number of GPUs is no longer recorded"
    );
    sim.node_mut("a").gpu_count = Some("seven".into());
    sim.settle();
    let (phase, reason, message) = reported(&sim, "a");
    assert_eq!((phase, reason), (Phase::Ready, Reason::InvalidAnnotation), "{message}");
}

/// Returns a node whose eight H100 were replaced by GPUs of these PCI device ids, with or without a reboot.
fn replaced(reboots: bool, device_ids: &[&str]) -> Sim {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    if reboots {
        sim.reboot("a", 0);
    }
    sim.plug("a", device_ids);
    sim.settle();
    sim
}

/// Returns the messages of the Events about a replacement of all GPUs, in order.
fn replacements(sim: &Sim) -> Vec<&str> {
    let events = sim.plans.iter().flat_map(Plan::events);
    events.filter(|event| event.reason == Reason::GpusReplaced).map(|event| event.message.as_str()).collect()
}

#[test]
fn gpus_that_a_reboot_replaced_by_another_model_are_expected() {
    let mut sim = replaced(true, &["1eb8"; 4]);
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::AllGpusAllocatable)), "{}", status.message);
    assert_eq!((status.model.as_deref(), status.gpus.most_seen), (Some("nvidia-tesla-t4"), Some(4)));
    let message = "all GPUs were replaced while the node was rebooted: 8 GPUs (nvidia-h100-80gb) by 4 GPUs (nvidia-tesla-t4); the earlier GPUs are no longer expected";
    assert_eq!(replacements(&sim), [message; 2], "one Event on the Node, one on the GpuNode");
    sim.reboot("a", 1);
    sim.settle();
    let (_, reason, message) = reported(&sim, "a");
    assert_eq!(reason, Reason::GpuMissing);
    assert!(message.starts_with("3 of 4 expected GPUs"), "{message}");
    assert_eq!(replacements(&sim).len(), 2);
}

#[test]
fn gpus_that_vanished_or_changed_without_a_reboot_are_missing() {
    let mixed = ["1eb8", "1eb8", "1eb8", "2330"];
    for (reboots, device_ids) in
        [(true, &["2330"; 4][..]), (true, &mixed), (true, &[]), (true, &["", "1eb8"]), (false, &["1eb8"; 4])]
    {
        let sim = replaced(reboots, device_ids);
        let (_, reason, message) = reported(&sim, "a");
        let missing = format!("{} of 8 expected GPUs", device_ids.len());
        assert!(reason == Reason::GpuMissing && message.starts_with(&missing), "{device_ids:?}: {reason}: {message}");
        assert_eq!(replacements(&sim).len(), 0, "{reboots} {device_ids:?}");
    }
}

#[test]
fn gpus_that_are_bound_to_vfio_later_are_no_longer_expected() {
    for spec in ["{}", "{pools: [{name: p, gpusPerNode: 8}]}"] {
        let taint = "{onUnhealthy: {taint: {effect: NoExecute}}}";
        let mut sim = Sim::settled_fleet(&format!("{{health: {taint}, {}", &spec[1..]), &["a"]);
        assert_eq!(sim.status("a").gpus.summary, "8/8", "{spec}");
        sim.pass_through("a", 2);
        sim.settle();
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::GpusPassedThrough)), "{spec}");
        assert_eq!((status.gpus.summary.as_str(), status.gpus.unhealthy), ("6/6", 0), "{spec}");
        assert!(sim.policy_status("all").attention.is_empty(), "nothing is wrong");
        assert_eq!(sim.node("a").own_taint, None, "{spec}: the pods on the other GPUs keep running");
        // One more is lost, which is not the same.
        sim.report("a").gpus.pop();
        sim.run(30);
        let status = sim.status("a");
        assert_eq!((status.reason(), status.gpus.unhealthy), (Some(Reason::GpuMissing), 1), "{spec}");
        assert!(status.message.contains("5 of 6 expected GPUs"), "{spec}: {}", status.message);
        for words in ["missing: 0000:0b:00.0;", "2 GPUs are passed through"] {
            assert!(status.message.contains(words), "{spec}: {}", status.message);
        }
        // They are bound to NVIDIA's driver again.
        sim.pass_through("a", 0);
        sim.plug("a", &["2330"; 8]);
        sim.settle();
        assert_eq!(sim.status("a").gpus.summary, "8/8", "{spec}");
    }
}
