//! Installing: how a policy takes the nodes of a fleet from no operands to ready.

use crate::sim::{Faults, Sim};
use gpu_operator_crd::{NodeName, Phase, keys, reason::Reason};
use gpu_operator_plan::{loop_memory::LoopState, world::TaintFact};

#[test]
fn every_named_key_is_published_and_cpu_nodes_get_none() {
    let mut sim = Sim::new().gpu_node("a", "15f9", 1).gpu_node("b", "13bb", 1).policy(
        "all",
        "{nodeLabels: [{key: accelerator}, {key: example.com/tier, value: gold}], pools: [{name: seed, match: {models: [nvidia-quadro-k620]}, nodeLabels: [{key: gpu/nividia, value: P630}]}]}",
    );
    sim.join_plain("cpu");
    sim.settle();
    assert_eq!(sim.node("a").labels["accelerator"], "nvidia-tesla-p100");
    assert_eq!(sim.node("b").labels["gpu/nividia"], "P630");
    assert!(["a", "b"].into_iter().all(|name| sim.node(name).labels["example.com/tier"] == "gold"));
    assert_eq!(sim.node("b").labels[keys::POOL], "seed");
    assert!(!sim.node("a").labels.contains_key("gpu/nividia"));
    assert_eq!(sim.node("cpu").labels.len(), 1);
    assert!(!sim.gpu_nodes.contains_key(&"cpu".into()));
}

#[test]
fn a_gke_label_names_the_model_before_the_probe_reports() {
    let mut sim = Sim::new().policy("all", "{}");
    sim.join_plain("gke");
    sim.faults.insert("gke".into(), Faults { no_probe: true, ..Faults::default() });
    sim.label("gke", "cloud.google.com/gke-accelerator", Some("nvidia-tesla-k80"));
    sim.run(30);
    assert_eq!(sim.node("gke").labels[keys::MODEL], "nvidia-tesla-k80");
    let before = sim.writes["policy/all"];
    sim.run(20);
    assert_eq!(sim.writes["policy/all"], before, "it is reported once that the report is awaited");
    assert!(sim.sets.is_empty() && sim.gpu_nodes.is_empty(), "the probe creates the GpuNode, unless it is missing");
    sim.sleep(61);
    sim.run(2);
    let status = sim.status("gke");
    assert_eq!((status.model.as_deref(), status.reason()), (Some("nvidia-tesla-k80"), Some(Reason::ProbeMissing)));
}

#[test]
fn failures_are_reported_and_recover_without_intervention() {
    let missing = Faults { missing_images: ["595.91.07".to_owned()].into(), ..Faults::default() };
    let crash = Faults { driver_crash: Some("kernel headers not found".into()), ..Faults::default() };
    let wrong = Faults { loads_instead: Some("570.1.1".into()), ..Faults::default() };
    let forbidden = Faults { pods_forbidden: Some("violates PodSecurity"), ..Faults::default() };
    let short = Faults { publishes: Some(7), ..Faults::default() };
    for (faults, reason) in [
        (missing, Reason::DriverImageNotFound),
        (crash, Reason::KernelHeadersUnavailable),
        (wrong, Reason::DriverVersionMismatch),
        (forbidden, Reason::PodsForbidden),
        (short, Reason::WaitingForAllocatable),
    ] {
        let mut sim = Sim::new().gpu_node("bad", "2330", 8).gpu_node("good", "2330", 8).policy("all", "{}");
        sim.faults.insert("bad".into(), faults);
        sim.run(40);
        let status = sim.status("bad");
        assert_eq!(status.reason(), Some(reason), "{status:#?}");
        assert_eq!(sim.status("good").phase, Phase::Ready, "{reason}: the other node is not affected");
        assert_eq!(sim.condition("all", "Ready").0, "False");
        sim.faults.clear();
        sim.refusals.clear();
        sim.settle();
        assert_eq!(sim.status("bad").phase, Phase::Ready, "{reason} recovers");
        assert_eq!(sim.condition("all", "Ready").0, "True");
    }
}

#[test]
fn devices_of_a_plugin_that_has_just_started_are_not_unhealthy() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    sim.faults.insert("a".into(), Faults { publishes: Some(0), ..Faults::default() });
    sim.node_mut("a").withheld = 8.into();
    sim.run(40);
    let message = sim.status("a").message;
    assert!(
        message.starts_with("0 of 8 GPUs are allocatable; waiting for kubelet and pod device-plugin@a"),
        "{message}"
    );
}

#[test]
fn a_lasting_change_of_a_count_is_reported() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    sim.faults.insert("a".into(), Faults { publishes: Some(0), ..Faults::default() });
    sim.run(40);
    sim.sleep(60);
    sim.run(3);
    assert!(sim.status("a").message.starts_with("0 of 8"), "{}", sim.status("a").message);
    sim.faults.insert("a".into(), Faults { publishes: Some(7), ..Faults::default() });
    sim.steps(30);
    let status = sim.status("a");
    assert!(status.message.starts_with("7 of 8") && status.gpus.allocatable == 7, "{}", status.message);
}

#[test]
fn a_changed_deadline_applies_to_a_phase_that_has_begun() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{readiness: {progressDeadline: 5m}}");
    sim.faults.insert("a".into(), Faults { publishes: Some(0), ..Faults::default() });
    sim.run(40);
    let early = sim.status("a");
    let began = early.progressing_since.clone().expect("a phase that waits").0;
    for (deadline, minutes, reason) in [
        ("10m", 10, Reason::WaitingForAllocatable),
        ("30s", 0, Reason::ProgressDeadlineExceeded),
        ("24h", 24 * 60, Reason::WaitingForAllocatable),
    ] {
        sim.apply_policy("all", &format!("{{readiness: {{progressDeadline: {deadline}}}}}"));
        sim.sleep(1);
        sim.run(2);
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason()), (early.phase, Some(reason)), "{deadline}: {}", status.message);
        let stalled = if reason.is_failure() { "True" } else { "False" };
        assert_eq!(sim.condition("all", "Stalled").0, stalled, "{deadline}");
        let due = status.deadline.expect("a deadline").0;
        assert_eq!(due.duration_since(began).as_mins(), minutes, "{deadline}");
    }
}

#[test]
fn a_node_that_is_not_ready_gets_its_policy() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    sim.settle();
    assert_eq!((sim.status("a").phase, sim.status("a").reason()), (Phase::Unmanaged, Some(Reason::NoPolicy)));
    sim.node_mut("a").ready = false;
    sim.apply_policy("all", "{}");
    sim.settle();
    assert_eq!((sim.status("a").phase, sim.status("a").reason()), (Phase::Discovery, Some(Reason::NodeNotReady)));
}

#[test]
fn without_gpu_nodes_a_policy_is_ready_only_if_it_needs_none() {
    for (least, status, reason) in [
        ("", "False", "NoMatchingNodes"),
        ("minReadyNodes: 1", "False", "NoMatchingNodes"),
        ("minReadyNodes: 1%", "False", "NoMatchingNodes"),
        ("minReadyNodes: 0", "True", "NoNodes"),
        ("minReadyNodes: 0%", "True", "NoNodes"),
    ] {
        let mut sim = Sim::new().policy("all", &format!("{{readiness: {{{least}}}}}"));
        sim.join_plain("cpu");
        sim.settle();
        assert_eq!(sim.condition("all", "Ready"), (status.into(), reason.into()), "{least}");
        // A node in progress counts, but need not be ready.
        sim.join_silent("a", &["2330"]);
        sim.run(1);
        assert_eq!(sim.condition("all", "Ready").0, status, "{least}");
    }
}

#[test]
fn gpus_that_are_allocatable_without_a_plugin_do_not_count() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    // Kubelet has not withdrawn the GPUs yet.
    for _ in 0..4 {
        sim.node_mut("a").allocatable = 8.into();
        let plan = sim.plan();
        let runs = sim.pods.get("device-plugin@a").is_some_and(gpu_operator_plan::world::PodFacts::running);
        assert!(runs || !ready(&plan), "{:?}", plan.statuses);
        sim.step();
        sim.sleep(1);
    }
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
}

fn ready(plan: &gpu_operator_plan::Plan) -> bool {
    plan.statuses[&"all".into()].nodes.ready > 0
}

#[test]
fn a_rejection_from_before_an_accepted_pod_does_not_count() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    sim.settle();
    let sets: Vec<_> = sim.sets.keys().cloned().collect();
    let at = Some(sim.now - jiff::SignedDuration::from_hours(1));
    for set in sets {
        let message = "pods \"x\" is forbidden".to_owned();
        sim.refusals.insert(set, gpu_operator_plan::world::Refusal { message, at });
    }
    sim.join("b", "2330", 8);
    for _ in 0..20 {
        sim.step();
        sim.sleep(1);
        assert_ne!(sim.status("b").reason(), Some(Reason::PodsForbidden));
    }
    assert_eq!(sim.status("b").phase, Phase::Ready);
}

#[test]
fn a_node_that_is_being_deleted_is_excluded() {
    let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
    sim.node_mut("b").deleting = true;
    sim.settle();
    assert_eq!(sim.status("b").reason(), Some(Reason::NodeDeleting));
    let counts = sim.policy_status("all").nodes;
    assert_eq!((counts.ready, counts.excluded, counts.total), (1, 1, 2));
    assert_eq!(sim.condition("all", "Ready").0, "True", "all remaining nodes are ready");
}

#[test]
fn a_phase_that_is_not_reported_has_its_deadline_nevertheless() {
    let mut sim = Sim::new().policy("all", "{readiness: {progressDeadline: 2m}}");
    for node in 0..100 {
        let name = NodeName::from(format!("n{node}"));
        sim.faults.insert(name.clone(), Faults { publishes: Some(0), ..Faults::default() });
        sim.join(name, "2330", 8);
    }
    let late = |sim: &Sim| sim.status("n0").reason() == Some(Reason::ProgressDeadlineExceeded);
    while !late(&sim) {
        sim.step();
        sim.sleep(1);
    }
    let started = sim.pods["device-plugin@n0"].created.expect("a time").reported();
    let after = sim.now.duration_since(started).as_secs();
    assert!((115..=125).contains(&after), "{after} s");
}

/// A quota rejects some pods and accepts others, so that a later pod does not prove that it was raised.
#[test]
fn a_quotas_rejection_is_reported_only_while_a_pod_is_missing() {
    let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
    let message = "pods \"nodestack-nvml-probe-x\" is forbidden: exceeded quota: gpu-operator-pods".to_owned();
    let at = Some(sim.now);
    sim.refusals.insert("nodestack-nvml-probe".into(), gpu_operator_plan::world::Refusal { message, at });
    let without_probe = Faults { no_probe: true, ..Faults::default() };
    sim.faults.insert("b".into(), without_probe.clone());
    sim.settle();
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "PodsForbidden".into()));
    sim.faults.clear();
    sim.settle();
    assert_eq!(sim.condition("all", "Stalled").0, "False", "the Event exists for an hour");
    // No probe runs on these nodes, whatever the quota.
    for (name, key, value) in [("windows", "kubernetes.io/os", "windows"), ("virtual", "type", "virtual-kubelet")] {
        sim.join_plain(name);
        sim.label(name, key, Some(value));
        sim.faults.insert(name.into(), without_probe.clone());
    }
    sim.settle();
    assert_eq!(sim.condition("all", "Stalled").0, "False");
}

#[test]
fn nodes_without_a_linux_host_are_left_out() {
    const TAINT: &str = "virtual-kubelet.io/provider";
    for (key, value) in [
        ("kubernetes.io/os", "windows"),
        ("type", "virtual-kubelet"),
        ("eks.amazonaws.com/compute-type", "fargate"),
        (TAINT, "azure"),
    ] {
        let mut sim = Sim::settled_fleet("{}", &["a"]);
        sim.join_plain("b");
        sim.faults.insert("b".into(), Faults { no_probe: true, ..Faults::default() });
        sim.label("b", "cloud.google.com/gke-accelerator", Some("nvidia-tesla-t4"));
        if key == TAINT {
            let taint = TaintFact { key: key.into(), value: value.into(), effect: "NoSchedule".into() };
            sim.node_mut("b").taints.push(taint);
        } else {
            sim.label("b", key, Some(value));
        }
        sim.run(100);
        assert_eq!(sim.policy_status("all").nodes.total, 1, "{key}");
        assert_eq!(sim.condition("all", "Ready").0, "True", "{key}");
        assert!(!sim.gpu_nodes.contains_key(&"b".into()), "{key}");
        assert!(!sim.node("b").labels.contains_key(keys::MODEL), "{key}");
    }
}

#[test]
fn published_labels_are_recorded_at_once() {
    let mut sim = Sim::new().policy("all", "{}");
    for node in 0..60 {
        let name = NodeName::from(format!("n{node}"));
        sim.faults.insert(name.clone(), Faults { slow: 15, ..Faults::default() });
        sim.join(name, "2330", 8);
    }
    sim.run(25);
    let before = sim.status("n0");
    sim.apply_policy("all", "{nodeLabels: [{key: accelerator}]}");
    sim.run(2);
    let after = sim.status("n0");
    assert_ne!(before.phase, Phase::Ready);
    assert_eq!(sim.node("n0").labels["accelerator"], *"nvidia-h100-80gb");
    assert!(after.published_labels.contains_key("accelerator"), "{after:?}");
}

#[test]
fn phases_that_last_are_reported_however_many_nodes_progress() {
    for nodes in [4, 60] {
        let mut sim = Sim::new().policy("all", "{}");
        for node in 0..nodes {
            let name = NodeName::from(format!("n{node}"));
            sim.faults.insert(name.clone(), Faults { slow: 15, ..Faults::default() });
            sim.join(name, "2330", 8);
        }
        sim.settle_with(&mut LoopState::default());
        for node in 0..nodes {
            // Spec, labels, three phases, and that it is ready.
            assert_eq!(sim.writes[&format!("node/n{node}")], 6, "n{node} of {nodes}");
        }
    }
}

#[test]
fn a_node_that_joins_does_not_change_daemon_sets_of_other_nodes() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    sim.settle();
    let before = sim.sets.clone();
    sim.join("b", "2330", 8);
    sim.settle();
    assert_eq!(sim.sets, before);
    assert_eq!(sim.status("b").phase, Phase::Ready);
}
