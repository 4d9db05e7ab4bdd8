//! The label of nodes with GPUs, which brings the probe, from the detection of the first GPU to the loss of the last one.

use std::time::Duration;

use gpu_operator_crd::{Phase, keys, reason::Reason};
use gpu_operator_plan::world::{Deletion, NodeFacts, Role};
use test_support::planned::Planned;

use crate::{
    law::Lawful,
    sim::{Faults, Sim},
    truth::{is_labelled_as_gpu_node, was_known},
};

/// Returns whether a node has the label, and the number of its probe's pods.
fn probe_on(sim: &Sim, node: &str) -> (bool, usize) {
    let pods = sim.pods.values().filter(|pod| pod.role == Role::Probe && pod.node.as_str() == node);
    (sim.node(node).is_labelled_present(), pods.count())
}

/// Lets third parties label a node as one with GPUs.
fn label_by_others(sim: &mut Sim, node: &str) {
    sim.label(node, "feature.node.kubernetes.io/pci-10de.present", Some("true"));
    sim.label(node, "cloud.google.com/gke-accelerator", Some("nvidia-h100-80gb"));
}

fn is_known(sim: &Sim, node: &str) -> bool {
    sim.gpu_nodes.contains_key(&node.into())
}

/// Once the fleet has settled, a probe runs on each node with a GPU, and on none whose probe has found none.
pub fn of_labels(sim: &Sim) -> Lawful {
    let is_wrong = |node: &&NodeFacts| {
        let machine = &sim.machines[&node.name];
        let has_gpus = !machine.gpus.is_empty();
        // The probe stays on a node whose GPUs are lost, and until it has reported in this boot.
        let is_known = is_labelled_as_gpu_node(node) || was_known(sim, &node.name);
        let is_reported = sim.has_working_probe(&node.name) && *machine.boot_id == *node.boot_id;
        let is_plain = !has_gpus && is_reported && !is_known;
        let serves = node.ready && node.has_linux_host();
        serves && (has_gpus && !node.is_labelled_present() || is_plain && node.is_labelled_present())
    };
    match sim.nodes.values().find(is_wrong) {
        Some(node) => Err(format!("{} has another label than its GPUs require: {:?}", node.name, node.labels)),
        None => Ok(()),
    }
}

/// Returns a fleet with this policy, if any, in which a GPU of node `a` has been detected, and node `b` has none.
fn detected(policy: Option<&str>) -> Sim {
    let mut sim = Sim::new();
    if let Some(spec) = policy {
        sim.apply_policy("all", spec);
    }
    sim.join_silent("a", &["2330"]);
    sim.join_silent("b", &[]);
    sim.settle();
    sim
}

#[test]
fn a_probe_runs_only_where_a_gpu_was_detected() {
    let sim = detected(None);
    assert_eq!((probe_on(&sim, "a"), probe_on(&sim, "b")), ((true, 1), (false, 0)));
    assert_eq!(sim.status("a").model.as_deref(), Some("nvidia-h100-80gb"));
    assert_eq!(sim.status("a").reason(), Some(Reason::NoPolicy));
    assert!(!is_known(&sim, "b"));
    assert_eq!(sim.writes.get("presence/b"), None);
}

#[test]
fn the_probe_leaves_with_the_last_gpu_and_returns_with_it() {
    for policy in [None, Some("{}")] {
        let mut sim = detected(policy);
        label_by_others(&mut sim, "a");
        sim.settle();
        sim.pass_through("a", 1);
        sim.settle();
        assert_eq!((probe_on(&sim, "a"), is_known(&sim, "a")), ((false, 0), false), "{policy:?}");
        assert!(sim.node("a").owned_labels.is_empty(), "{policy:?}");
        sim.pass_through("a", 0);
        sim.settle();
        assert_eq!(probe_on(&sim, "a"), (true, 1), "{policy:?}");
        assert_eq!(sim.spec("a").policy.is_some(), policy.is_some());
    }
}

#[test]
fn the_probe_stays_where_gpus_are_missing() {
    let mut sim = detected(Some("{}"));
    sim.plug("a", &[]);
    sim.settle();
    assert_eq!((probe_on(&sim, "a"), is_known(&sim, "a")), ((true, 1), true));
    assert_eq!(sim.status("a").gpus.expected, Some(1));
    // An administrator has removed the GPU for good.
    let mut unmanaged = sim.clone();
    unmanaged.delete_policy("all");
    unmanaged.settle();
    for mut sim in [sim, unmanaged] {
        assert!(sim.node("a").is_labelled_present());
        sim.gpu_nodes.remove(&"a".into());
        sim.settle();
        assert_eq!((probe_on(&sim, "a"), is_known(&sim, "a")), ((false, 0), false));
    }
}

#[test]
fn without_a_report_the_probe_stays() {
    for policy in [None, Some("{}")] {
        let mut sim = detected(policy);
        sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
        sim.reboot("a", 1);
        sim.settle();
        assert!(sim.node("a").is_labelled_present(), "rebooted, {policy:?}");
        sim.gpu_nodes.remove(&"a".into());
        sim.settle();
        assert!(sim.node("a").is_labelled_present(), "without a GpuNode, {policy:?}");
    }
}

#[test]
fn a_report_of_an_earlier_boot_does_not_end_the_probe() {
    let mut sim = detected(None);
    sim.plug("a", &[]);
    sim.write_report(&"a".into());
    sim.reboot("a", 0);
    sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
    sim.settle();
    assert!(sim.node("a").is_labelled_present());
    sim.faults.clear();
    sim.settle();
    assert_eq!((probe_on(&sim, "a"), is_known(&sim, "a")), ((false, 0), false));
}

#[test]
fn the_probe_outlives_the_stack_whose_driver_it_releases() {
    let mut sim = detected(Some("{}"));
    sim.pass_through("a", 1);
    while sim.node("a").is_labelled_present() {
        assert!(probe_on(&sim, "a").0 && is_known(&sim, "a"));
        sim.step();
        sim.sleep(1);
    }
    assert!(sim.node("a").owned_labels.is_empty(), "{:?}", sim.node("a").labels);
}

#[test]
fn a_detected_node_whose_probe_is_silent_is_reported() {
    // Without and with a label that names the model.
    let silent = |label: Option<&str>| {
        let mut sim = Sim::new().policy("all", "{}");
        sim.join_silent("a", &["2330"]);
        sim.label("a", "karpenter.k8s.aws/instance-gpu-name", label);
        sim.faults.insert("a".into(), Faults { no_probe: true, ..Faults::default() });
        sim.surroundings();
        sim.carry_out(&sim.plan());
        assert_eq!(sim.gpu_nodes[&"a".into()].status, None, "a status before the probe had time to report: {label:?}");
        sim
    };
    silent(Some("h100"));
    let mut sim = silent(None);
    sim.settle();
    assert_eq!(sim.status("a").reason(), Some(Reason::ProbeMissing));
    assert!(
        sim.status("a").message.contains("DaemonSet nodestack-nvml-probe has no pod"),
        "{}",
        sim.status("a").message
    );
    sim.faults.clear();
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
}

#[test]
fn a_silent_probe_is_not_confused_with_its_predecessor() {
    let mut sim = Sim::new();
    sim.join_silent("a", &["2330"]);
    sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
    sim.settle();
    let status = sim.status("a");
    assert_eq!(status.reason(), Some(Reason::ProbeMissing));
    assert!(status.message.contains("nvml-probe@a is running but has not reported"), "{}", status.message);
    let mut predecessor = sim.pods["nvml-probe@a"].clone();
    predecessor.name = "before".to_owned();
    predecessor.deletion = Some(Deletion { since: sim.now.into(), grace: Duration::ZERO });
    sim.pods.insert("before".to_owned(), predecessor);
    assert!(sim.plan().node_statuses().is_empty(), "{:?}", sim.plan().node_statuses());
}

#[test]
fn the_label_is_set_again_and_never_where_no_probe_can_run() {
    let mut sim = detected(None);
    sim.label("a", keys::PRESENT, None);
    sim.settle();
    assert_eq!(probe_on(&sim, "a"), (true, 1));
    sim.label("a", keys::PRESENT, Some("false"));
    sim.settle();
    assert_eq!(probe_on(&sim, "a"), (true, 1));
    assert_eq!(sim.writes["presence/a"], 3);

    let mut sim = Sim::new();
    sim.join_silent("a", &["2330"]);
    sim.label("a", "kubernetes.io/os", Some("windows"));
    sim.settle();
    assert_eq!(probe_on(&sim, "a"), (false, 0));
}

#[test]
fn a_rejected_detector_is_named_while_no_node_is_known() {
    let mut sim = Sim::new().policy("all", "{}");
    let message = "pods is forbidden: violates PodSecurity".to_owned();
    let refusal = gpu_operator_plan::world::Refusal { message, at: Some(sim.now) };
    sim.refusals.insert("nodestack-gpu-detector".into(), refusal);
    sim.settle();
    assert_eq!(sim.condition("all", "Stalled").1, "PodsForbidden");
    assert!(
        sim.message("all", "Ready").contains("DaemonSet nodestack-gpu-detector"),
        "{}",
        sim.message("all", "Ready")
    );
    sim.join("a", "2330", 1);
    sim.settle();
    assert_eq!(sim.condition("all", "Ready").0, "True");
}

#[test]
fn the_first_gpu_of_a_node_costs_it_one_more_write() {
    let sim = detected(Some("{}"));
    assert_eq!(sim.status("a").phase, Phase::Ready);
    assert_eq!(sim.writes["presence/a"], 1);
    // Its GpuNode's spec, two statuses, and its labels.
    assert!(sim.writes["node/a"] <= 4, "{:?}", sim.writes);
}
