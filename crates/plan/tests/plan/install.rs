//! Installing: how a policy takes the nodes of a fleet from no operands to ready.

use crate::{
    reviewed::review,
    sim::{Faults, Sim},
};
use gpu_operator_crd::{NodeName, Phase, keys, policy::Stage, reason::Reason};
use gpu_operator_plan::{carry::LoopState, world::TaintFact};

#[test]
fn an_empty_policy_gives_each_model_a_driver_that_supports_it() {
    let mut sim = Sim::new()
        .gpu_node("k80", "102d", 4)
        .gpu_node("p100", "15f9", 4)
        .gpu_node("h100", "2330", 8)
        .policy("all", "{}");
    sim.settle();
    let mut images: Vec<_> = sim.sets_of(Stage::Driver).into_iter().map(Sim::image).collect();
    images.sort();
    assert_eq!(
        images,
        [
            "nvcr.io/nvidia/driver:470.256.02-ubuntu20.04",
            "nvcr.io/nvidia/driver:580.173.02-ubuntu22.04",
            "nvcr.io/nvidia/driver:595.91.07-ubuntu22.04",
        ]
    );
    for node in ["k80", "p100", "h100"] {
        assert_eq!(sim.status(node).phase, Phase::Ready, "{node}");
    }
    assert_eq!(sim.condition("all", "Ready"), ("True".into(), "AllGpusAllocatable".into()));
    assert_eq!(sim.condition("all", "Reconciling").0, "False");
    assert_eq!(sim.condition("all", "Stalled").0, "False");
    let status = sim.policy_status("all");
    assert_eq!((status.summary.nodes.as_str(), status.summary.gpus.as_str()), ("3/3", "16/16"));
}

#[test]
fn every_key_that_the_policy_names_is_published_and_cpu_nodes_get_none() {
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
    let labels = &mut sim.node_mut("gke").labels;
    labels.insert("cloud.google.com/gke-accelerator".into(), "nvidia-tesla-k80".into());
    sim.run(3);
    assert_eq!(sim.node("gke").labels[keys::MODEL], "nvidia-tesla-k80");
    assert_eq!(sim.policy_status("all").attention[0].reason, Reason::WaitingForReport);
    assert!(
        sim.sets.is_empty() && sim.gpu_nodes.is_empty(),
        "the probe creates the GpuNode, unless the probe is missing"
    );
    sim.sleep(61);
    sim.run(2);
    assert_eq!(sim.status("gke").model.as_deref(), Some("nvidia-tesla-k80"));
    assert_eq!(
        sim.status("gke").reason(),
        Some(Reason::ProbeMissing),
        "{:#?} {:#?}",
        sim.status("gke"),
        sim.plans.last()
    );
}

#[test]
fn a_host_driver_is_not_replaced_whether_loaded_or_not() {
    let mut sim = Sim::new().gpu_node("loaded", "2330", 8).gpu_node("idle", "2330", 8).policy("all", "{}");
    sim.host_driver("loaded", "580.1.1", true);
    sim.host_driver("idle", "580.1.1", false);
    sim.run(60);
    assert!(sim.sets_of(Stage::Driver).is_empty());
    assert_eq!(sim.status("loaded").phase, Phase::Ready);
    assert_eq!(sim.status("idle").reason(), Some(Reason::DriverNotLoaded));
    assert_eq!(sim.report("idle").driver.loaded, None);
}

#[test]
fn an_install_costs_at_most_four_writes_per_node() {
    let mut sim = Sim::new().policy("all", "{}");
    for node in 0..20 {
        sim.join(format!("n{node}"), "2330", 8);
    }
    sim.settle();
    for node in 0..20 {
        let writes = sim.writes[&format!("node/n{node}")];
        assert!(writes <= 4, "n{node}: {writes}");
    }
    let sets: u32 =
        sim.writes.iter().filter(|(object, _)| object.starts_with("daemonset/")).map(|(_, writes)| writes).sum();
    assert_eq!(sets, 3);
}

#[test]
fn phases_are_reported_less_often_while_many_nodes_are_in_progress() {
    for (nodes, reported) in [(4, true), (60, false)] {
        let mut sim = Sim::new().policy("all", "{}");
        for node in 0..nodes {
            let name = NodeName::from(format!("n{node}"));
            sim.faults.insert(name.clone(), Faults { slow: 15, ..Faults::default() });
            sim.join(name, "2330", 8);
        }
        sim.settle_with(&mut LoopState::default());
        for node in 0..nodes {
            let writes = sim.writes[&format!("node/n{node}")];
            assert_eq!(writes > 4, reported, "n{node} of {nodes}: {writes}");
        }
    }
}

#[test]
fn failures_are_reported_with_the_pods_message_and_recover_without_intervention() {
    let missing = Faults { missing_images: ["595.91.07".to_owned()].into(), ..Faults::default() };
    let crash = Faults { driver_crash: Some("kernel headers not found".into()), ..Faults::default() };
    let wrong = Faults { loads_instead: Some("570.1.1".into()), ..Faults::default() };
    let forbidden = Faults { pods_forbidden: Some("violates PodSecurity"), ..Faults::default() };
    let short = Faults { publishes: Some(7), ..Faults::default() };
    for (faults, reason, words) in [
        (missing, Reason::DriverImageNotFound, "not found"),
        (crash, Reason::ContainerCrashed, "kernel headers not found"),
        (wrong, Reason::DriverVersionMismatch, "570.1.1"),
        (forbidden, Reason::PodsForbidden, "violates PodSecurity"),
        (short, Reason::WaitingForAllocatable, "7 of 8"),
    ] {
        let mut sim = Sim::new().gpu_node("bad", "2330", 8).gpu_node("good", "2330", 8).policy("all", "{}");
        sim.faults.insert("bad".into(), faults);
        sim.run(40);
        let status = sim.status("bad");
        assert_eq!(status.reason(), Some(reason), "{status:#?}");
        assert!(status.message.contains(words), "{}", status.message);
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
fn unhealthy_devices_are_distinguished_from_devices_that_are_not_registered_yet() {
    for (publishes, withheld, words) in [
        (
            7,
            1,
            "7 of 8 GPUs are allocatable; 1 more is registered but not allocatable: pod device-plugin@a reports it as unhealthy; see its log",
        ),
        (7, 0, "7 of 8 GPUs are allocatable; waiting for kubelet and pod device-plugin@a"),
        // The plugin has just started.
        (0, 8, "0 of 8 GPUs are allocatable; waiting for kubelet and pod device-plugin@a"),
    ] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
        sim.faults.insert("a".into(), Faults { publishes: Some(publishes), ..Faults::default() });
        sim.node_mut("a").withheld = withheld.into();
        sim.run(40);
        let message = sim.status("a").message;
        assert!(message.starts_with(words), "{message}");
    }
}

#[test]
fn a_lasting_change_of_a_count_is_reported_even_if_the_reason_is_the_same() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    sim.faults.insert("a".into(), Faults { publishes: Some(0), ..Faults::default() });
    sim.run(40);
    sim.sleep(60);
    sim.run(3);
    assert!(sim.status("a").message.starts_with("0 of 8"), "{}", sim.status("a").message);
    sim.faults.insert("a".into(), Faults { publishes: Some(7), ..Faults::default() });
    for _ in 0..30 {
        sim.step();
        sim.sleep(1);
    }
    let status = sim.status("a");
    assert!(status.message.starts_with("7 of 8") && status.gpus.allocatable == 7, "{}", status.message);
}

#[test]
fn a_phase_that_exceeds_its_deadline_is_a_failure_with_the_last_state() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{readiness: {progressDeadline: 5m}}");
    sim.faults.insert("a".into(), Faults { publishes: Some(0), ..Faults::default() });
    sim.run(40);
    sim.sleep(300);
    sim.run(3);
    let status = sim.status("a");
    assert_eq!(status.reason(), Some(Reason::ProgressDeadlineExceeded));
    assert!(status.message.contains("0 of 8"), "{}", status.message);
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "ProgressDeadlineExceeded".into()));
}

#[test]
fn a_changed_progress_deadline_applies_to_a_phase_that_has_begun() {
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
        let due = status.deadline.expect("a deadline").0;
        assert_eq!(due.duration_since(began).as_mins(), minutes, "{deadline}");
    }
}

#[test]
fn an_unsupported_driver_is_rejected_with_a_suggestion_and_other_nodes_continue() {
    let mut sim = Sim::new()
        .gpu_node("old", "102d", 2)
        .gpu_node("new", "2330", 2)
        .policy("all", "{pools: [{name: k80, match: {models: [nvidia-tesla-k80]}, driver: {version: 595.91.07}}]}");
    sim.settle();
    assert_eq!(sim.status("old").reason(), Some(Reason::DriverUnsupported));
    assert!(sim.status("old").message.contains("470.256.02"), "{}", sim.status("old").message);
    assert_eq!(sim.status("new").phase, Phase::Ready);
    assert_eq!(sim.condition("all", "Accepted"), ("False".into(), "InvalidPolicy".into()));
}

#[test]
fn a_node_that_is_not_ready_when_its_policy_is_created_is_not_unmanaged() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    sim.settle();
    assert_eq!((sim.status("a").phase, sim.status("a").reason()), (Phase::Unmanaged, Some(Reason::NoPolicy)));
    sim.node_mut("a").ready = false;
    sim.apply_policy("all", "{}");
    sim.settle();
    assert_eq!((sim.status("a").phase, sim.status("a").reason()), (Phase::Discovery, Some(Reason::NodeNotReady)));
}

#[test]
fn waiting_for_a_report_is_reported_once() {
    let mut sim = Sim::new().policy("all", "{}");
    sim.join_plain("gke");
    sim.label("gke", "cloud.google.com/gke-accelerator", Some("nvidia-tesla-k80"));
    sim.run(30);
    let before = sim.writes["policy/all"];
    sim.run(20);
    assert_eq!(sim.writes["policy/all"], before);
}

#[test]
fn a_policy_without_gpu_nodes_is_not_ready() {
    for least in ["", "minReadyNodes: 1", "minReadyNodes: 1%"] {
        let mut sim = Sim::new().policy("all", &format!("{{readiness: {{{least}}}}}"));
        sim.join_plain("cpu");
        sim.settle();
        assert_eq!(sim.condition("all", "Ready"), ("False".into(), "NoMatchingNodes".into()), "{least}");
    }
}

#[test]
fn a_policy_that_requires_no_node_is_ready_without_any() {
    for none in ["0", "0%"] {
        let mut sim = Sim::new().policy("all", &format!("{{readiness: {{minReadyNodes: {none}}}}}"));
        sim.join_plain("cpu");
        sim.settle();
        assert_eq!(sim.condition("all", "Ready"), ("True".into(), "NoNodes".into()), "{none}");
        // A node in progress counts, but need not be ready.
        sim.join_silent("a", &["2330"]);
        sim.run(1);
        assert_eq!(sim.condition("all", "Ready").0, "True", "{none}");
    }
}

#[test]
fn a_rejection_of_the_probes_pods_is_reported_as_the_cause() {
    let mut sim = Sim::new().policy("all", "{}");
    sim.join_plain("unknown");
    sim.faults.insert("unknown".into(), Faults { no_probe: true, ..Faults::default() });
    let message = "pods \"nodestack-nvml-probe-x\" is forbidden: violates PodSecurity \"restricted\"".to_owned();
    sim.refusals.insert("nodestack-nvml-probe".into(), gpu_operator_plan::world::Refusal { message, at: None });
    sim.settle();
    assert_eq!(sim.condition("all", "Ready"), ("False".into(), "PodsForbidden".into()));
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "PodsForbidden".into()));
}

#[test]
fn gpus_that_are_still_allocatable_without_a_plugin_make_no_node_ready() {
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
fn a_rejection_from_before_a_pod_was_accepted_does_not_apply_to_the_next_one() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    sim.settle();
    let sets: Vec<_> = sim.sets.keys().cloned().collect();
    let at = Some(sim.now - k8s_openapi::jiff::SignedDuration::from_hours(1));
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

/// Returns a node with this number of GPUs on the bus, or without a report, and the expected number from pool,
/// annotation and cloud.
fn expecting(on_bus: Option<u32>, pool: Option<u32>, annotated: Option<u32>, cloud: Option<u32>) -> Sim {
    let mut sim = Sim::new();
    match on_bus {
        Some(count) => sim.join("a", "1eb8", count),
        None => sim.join_plain("a"),
    }
    sim.label("a", "cloud.google.com/gke-accelerator", Some("nvidia-tesla-t4"));
    if let Some(count) = cloud {
        sim.label("a", "cloud.google.com/gke-accelerator-count", Some(&count.to_string()));
    }
    sim.node_mut("a").gpu_count = annotated.map(|count| count.to_string());
    let expected_resources = pool.map_or_else(String::new, |count| format!(", gpusPerNode: {count}"));
    sim.apply_policy("all", &format!("{{pools: [{{name: p{expected_resources}}}]}}"));
    // This is longer than the operator waits for a probe.
    for _ in 0..100 {
        sim.step();
        sim.sleep(1);
    }
    sim
}

#[test]
fn the_expected_gpus_come_from_annotation_pool_history_or_cloud_in_this_order() {
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
fn pods_that_a_quota_rejects_are_reported_with_the_api_servers_message() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    // The API server accepts some pods and rejects others.
    let words = Some("exceeded quota: gpu-operator, used: pods=3, limited: pods=3");
    sim.faults.insert("b".into(), Faults { pods_forbidden: words, ..Faults::default() });
    sim.join("b", "2330", 8);
    sim.run(60);
    let status = sim.status("b");
    assert_eq!((status.phase, status.reason()), (Phase::Driver, Some(Reason::PodsForbidden)));
    assert!(status.message.contains("exceeded quota: gpu-operator"), "{}", status.message);
    assert_eq!(sim.status("a").phase, Phase::Ready);
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
fn a_missing_gpu_is_still_expected() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    sim.settle();
    sim.report("a").gpus.pop();
    sim.run(30);
    let status = sim.status("a");
    assert_eq!((status.reason(), status.gpus.expected), (Some(Reason::GpuMissing), Some(8)));
}

#[test]
fn uninstalling_removes_all_of_the_operators_labels_from_all_nodes() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{nodeLabels: [{key: accelerator}]}");
    sim.node_mut("a").labels.insert("mine".into(), "stays".into());
    sim.settle();
    assert!(sim.node("a").labels.contains_key("accelerator"));
    sim.delete_policy("all");
    sim.settle();
    assert_eq!(sim.node("a").labels.keys().collect::<Vec<_>>(), ["kubernetes.io/hostname", "mine"]);
    assert!(sim.sets.is_empty() && sim.policies.is_empty(), "{:?}", sim.sets.keys());
    assert_eq!(sim.status("a").reason(), Some(Reason::NoPolicy));
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

#[test]
fn the_daemon_sets_of_a_pool_are_as_reviewed() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy(
        "all",
        "{images: {registry: mirror.example.com/nv, pullSecrets: [{name: pull}]}, pools: [{name: h100, match: {models: [nvidia-h100-80gb]}, driver: {env: [{name: HTTP_PROXY, value: \"http://proxy\"}]}, devicePlugin: {args: [--v=1], resources: {limits: {memory: 100Mi}}}}]}",
    );
    sim.settle();
    review("install", &sim, &[Stage::Driver, Stage::Toolkit, Stage::DevicePlugin]);
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

#[test]
fn published_labels_are_recorded_without_waiting_for_the_next_reported_phase() {
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

/// A quota rejects some pods and accepts others, so that a later pod does not prove that it was raised.
#[test]
fn a_rejection_by_a_quota_is_reported_only_while_a_pod_is_missing() {
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
