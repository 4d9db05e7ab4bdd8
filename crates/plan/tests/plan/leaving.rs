//! Nodes that no policy governs any more: nothing is taken from running GPU pods, a cause that is undone changes nothing, and in the
//! end nothing is left.

use std::collections::{BTreeMap, BTreeSet};
use test_support::planned::Planned;

use gpu_operator_crd::{NodeName, Phase, keys, policy::Stage, reason::Reason};
use gpu_operator_plan::{
    output::{
        body::{Body, Kind},
        urgency,
        write::{Urgency, Write},
    },
    world::{ObservedTime, PodFacts, RuntimeClassFacts},
};

use crate::{
    robust::{busy, step_until_released},
    sim::{Faults, Sim},
};

const SELECTING: &str = "{nodeSelector: {matchLabels: {gpu: yes}}, nodeLabels: [{key: accelerator}]}";

/// Returns a settled fleet whose nodes a policy selects by a label.
fn selected(nodes: &[&str]) -> Sim {
    let mut sim = Sim::new().policy("all", SELECTING);
    for node in nodes {
        sim.join(*node, "2330", 8);
        sim.label(*node, "gpu", Some("yes"));
    }
    sim.settle();
    sim
}

/// Returns when each pod of the operands was created.
fn operands(sim: &Sim) -> BTreeMap<String, Option<ObservedTime>> {
    sim.pods.values().map(|pod: &PodFacts| (pod.name.clone(), pod.created)).collect()
}

/// Returns the stages that a node's labels name.
fn stages(sim: &Sim, node: &str) -> BTreeSet<Stage> {
    let labels = &sim.node(node).labels;
    Stage::ALL.into_iter().filter(|stage| labels.contains_key(stage.key())).collect()
}

#[test]
fn idle_nodes_leave_after_a_minute_and_busy_ones_later() {
    let mut sim = selected(&["a", "b", "c"]);
    busy(&mut sim, "c");
    for node in ["a", "b", "c"] {
        sim.label(node, "gpu", None);
    }
    let mut left = BTreeMap::new();
    for second in 0..300 {
        sim.step();
        for node in ["a", "b", "c"] {
            if stages(&sim, node).is_empty() {
                left.entry(node).or_insert(second);
            }
        }
        sim.sleep(1);
    }
    assert_eq!(left.keys().copied().collect::<Vec<_>>(), ["a", "b"], "{left:?}");
    assert!(left["a"] >= 60 && left["a"] < 90 && left["a"] == left["b"], "{left:?}");
    assert_eq!(stages(&sim, "c").len(), 3);
    let status = sim.status("c");
    assert_eq!((status.reason(), status.waits_on), (Some(Reason::Leaving), vec!["team/training".to_owned()]));
    assert_eq!(sim.spec("c").policy, Some("all".into()));

    sim.gpu_pods.clear();
    sim.run(60);
    assert!(stages(&sim, "c").is_empty() && sim.node("c").owned_labels.is_empty());
    assert_eq!((sim.status("c").reason(), sim.spec("c").policy.clone()), (Some(Reason::NoPolicy), None));
    assert!(sim.sets.is_empty(), "{:?}", sim.sets.keys());
}

#[test]
fn a_settled_node_that_leaves_costs_no_write_while_its_pods_run() {
    let mut sim = selected(&["a"]);
    busy(&mut sim, "a");
    sim.label("a", "gpu", None);
    sim.steps(90);
    let before = sim.writes.clone();
    sim.steps(600);
    assert_eq!(sim.writes, before);
}

#[test]
fn a_pod_that_gets_a_gpu_in_the_last_moment_keeps_the_driver() {
    let mut sim = selected(&["a"]);
    sim.label("a", "gpu", None);
    let driver = sim.node("a").labels[keys::DRIVER].clone();
    while stages(&sim, "a").contains(&Stage::DevicePlugin) {
        sim.step();
        sim.sleep(1);
    }
    assert_eq!(stages(&sim, "a"), [Stage::Driver, Stage::Toolkit].into(), "the plugin goes first");
    busy(&mut sim, "a");
    sim.steps(300);
    assert_eq!(sim.node("a").labels[keys::DRIVER], driver);
    assert!(!sim.spec("a").release_driver, "the health of GPUs in use is monitored");
    // With its GpuNode and without a probe nothing is known of its GPUs.
    sim.faults.insert("a".into(), Faults { no_probe: true, ..Faults::default() });
    sim.gpu_nodes.clear();
    sim.steps(300);
    assert_eq!(sim.node("a").labels[keys::DRIVER], driver);
    sim.faults.clear();
    sim.gpu_pods.clear();
    sim.run(120);
    assert!(stages(&sim, "a").is_empty());
}

#[test]
fn with_deletion_policy_now_nothing_is_waited_for() {
    for leave in [
        (|sim| sim.delete_policy("all")) as fn(&mut Sim),
        |sim| sim.apply_policy("all", "{deletionPolicy: Now, nodeSelector: {matchLabels: {no: node}}}"),
        |sim| sim.label("a", keys::MANAGED, Some("false")),
    ] {
        let mut sim = Sim::settled_fleet("{deletionPolicy: Now}", &["a"]);
        busy(&mut sim, "a");
        leave(&mut sim);
        sim.step();
        assert!(!stages(&sim, "a").contains(&Stage::DevicePlugin));
        sim.run(60);
        assert!(stages(&sim, "a").is_empty());
    }
}

#[test]
fn the_pods_of_leaving_nodes_are_listed_in_turns() {
    let names: Vec<String> = (0..100).map(|node| format!("n{node:03}")).collect();
    let mut sim = selected(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for node in &names {
        busy(&mut sim, node);
        sim.label(node.as_str(), "gpu", None);
    }
    sim.steps(61);
    let mut listed = BTreeSet::new();
    for _ in 0..10 {
        let mut of_pass: Vec<NodeName> = Vec::new();
        let plan = sim.plan_asking(sim.world(), |nodes| of_pass.extend(nodes.iter().cloned()));
        assert!(of_pass.len() <= 32, "{} nodes in one pass", of_pass.len());
        listed.extend(of_pass);
        sim.step_with(plan);
        sim.sleep(10);
    }
    assert_eq!(listed.len(), names.len());
}

#[test]
fn a_large_fleet_leaves_although_its_pods_are_listed_in_turns() {
    let names: Vec<String> = (0..100).map(|node| format!("n{node:03}")).collect();
    let mut sim = selected(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for node in &names {
        // The removal of the driver waits for the probe, and so takes more than one turn.
        sim.faults.insert(node.as_str().into(), Faults { mute_probe: true, ..Faults::default() });
    }
    let before = sim.writes.clone();
    sim.delete_policy("all");
    sim.steps(400);
    assert!(sim.policies.is_empty(), "{:?}", sim.policy_status("all").nodes);
    let nodes = sim.writes_to("node").into_iter();
    let most = nodes.map(|(node, writes)| writes - before[node]).max();
    assert!(most <= Some(12), "{most:?} writes to one node and its GpuNode");
}

#[test]
fn the_finalizer_stays_while_a_node_has_a_taint_of_the_operator() {
    let spec = "{deletionPolicy: Now, health: {onUnhealthy: {taint: {effect: NoSchedule}}}}";
    let mut sim = Sim::settled_fleet(spec, &["a"]);
    sim.faults.insert("a".into(), Faults { publishes: Some(7), ..Faults::default() });
    crate::health::set_health(&mut sim, 0, gpu_operator_crd::health::HealthState::Unhealthy);
    sim.run(60);
    assert!(sim.node("a").own_taint.is_some() && sim.node("a").own_conditions.contains_key(keys::HEALTH_CONDITION));
    sim.delete_policy("all");
    let is_health = |write: &Write| matches!(write.body, Body::Taints(_) | Body::Conditions(_));
    // The API server rejects these writes for five minutes.
    for _ in 0..300 {
        let mut plan = sim.plan();
        for write in plan.take_writes().iter().flatten().filter(|write| !is_health(write)) {
            sim.write(write).expect("an accepted write");
        }
        sim.surroundings();
        sim.sleep(1);
    }
    assert!(sim.policies.contains_key(&"all".into()), "the taint would stay");
    sim.run(60);
    assert!(sim.node("a").taints.is_empty() && sim.node("a").own_conditions.is_empty());
    assert!(sim.policies.is_empty());
}

#[test]
fn a_runtime_class_is_kept_until_the_last_node_has_left() {
    let mut sim = Sim::settled_fleet("{defaults: {toolkit: {injection: Runtime}}}", &["a"]);
    busy(&mut sim, "a");
    sim.delete_policy("all");
    sim.steps(120);
    assert!(sim.runtime_classes.contains_key("nvidia"), "new pods that name it would be rejected");
    // A policy that cannot be parsed has not been deleted.
    let mut world = sim.world();
    world.policies.clear();
    world.unreadable_policies.insert("all".into());
    assert!(sim.plan_for(world).deleted(Kind::RuntimeClass).is_empty());

    sim.gpu_pods.clear();
    sim.run(200);
    assert!(sim.runtime_classes.is_empty() && sim.policies.is_empty());
}

#[test]
fn a_runtime_class_that_a_policy_owns_is_given_to_nobody() {
    let mut sim = Sim::settled_fleet("{defaults: {toolkit: {injection: Runtime}}}", &["a"]);
    let class = sim.runtime_classes.get_mut("nvidia").expect("a RuntimeClass");
    *class = RuntimeClassFacts { owned: true, ..class.clone() };
    sim.settle();
    assert!(!sim.runtime_classes["nvidia"].owned);
}

/// Returns a fleet whose node a has left its policy in the middle of its update, for which node b waits.
fn left_in_its_update() -> Sim {
    let mut sim = selected(&["a", "b"]);
    sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
    sim.apply_policy("all", "{nodeSelector: {matchLabels: {gpu: yes}}, defaults: {driver: {version: 580.105.08}}}");
    step_until_released(&mut sim, "a");
    sim.label("a", "gpu", None);
    sim
}

#[test]
fn a_node_that_leaves_during_its_update_keeps_its_turn() {
    let mut sim = left_in_its_update();
    busy(&mut sim, "a");
    sim.steps(100);
    assert!(!sim.is_moving("b"));
    let message = sim.message("all", "Reconciling");
    assert!(message.contains("node a has left pool nvidia-h100-80gb in the middle of an update"), "{message}");
    sim.gpu_pods.clear();
    sim.steps(200);
    assert!(sim.status("b").is_ready() && !sim.is_moving("b"));
}

#[test]
fn a_node_that_leaves_unparsed_keeps_its_turn() {
    let mut sim = left_in_its_update();
    sim.unparsable_gpu_nodes.insert("a".into());
    sim.steps(100);
    assert!(!sim.is_moving("b"));
    let message = sim.message("all", "Reconciling");
    assert!(message.contains("GpuNode a cannot be parsed"), "{message}");
    // It is counted by no policy.
    assert_eq!(sim.policy_status("all").nodes.total, 1);
    sim.unparsable_gpu_nodes.clear();
    sim.steps(200);
    assert!(sim.status("b").is_ready() && !sim.is_moving("b"));
}

#[test]
fn a_silent_node_without_a_gpu_node_blocks_no_deletion() {
    let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
    sim.node_mut("a").ready = false;
    sim.gpu_nodes.remove(&"a".into());
    sim.delete_policy("all");
    sim.run(300);
    assert!(sim.policies.is_empty() && sim.sets.is_empty(), "{:?}", sim.sets.keys());
}

#[test]
fn the_policys_status_names_the_pods_that_it_waits_for() {
    let mut sim = selected(&["a"]);
    busy(&mut sim, "a");
    sim.delete_policy("all");
    sim.steps(30);
    let before = sim.policy_status("all");
    sim.steps(60);
    let after = sim.policy_status("all");
    assert!(after.summary.message.contains("team/training"), "{}", after.summary.message);
    assert_ne!(urgency::of_policy(Some(&before), &after), Urgency::Detail, "it is worth a write");
}

#[test]
fn a_lost_selector_label_changes_nothing_if_it_returns() {
    let mut sim = selected(&["a", "b", "c"]);
    busy(&mut sim, "a");
    let (pods, labels) = (operands(&sim), sim.node("b").labels.clone());
    sim.apply_policy("all", "{nodeSelector: {matchLabels: {gpu: oui}}, nodeLabels: [{key: accelerator}]}");
    sim.steps(30);
    let status = sim.status("b");
    assert_eq!((status.phase, status.reason()), (Phase::Unmanaged, Some(Reason::Leaving)), "{}", status.message);
    let (policy, nodes) = (sim.policy_status("all"), sim.policy_status("all").nodes);
    assert_eq!((nodes.total, nodes.leaving, policy.attention.len()), (0, 3, 3));
    assert_eq!(sim.condition("all", "Ready").1, "NoMatchingNodes");
    sim.apply_policy("all", SELECTING);
    sim.settle();
    assert_eq!((operands(&sim), sim.node("b").labels.clone()), (pods, labels));
    assert!(sim.status("b").is_ready());
    assert_eq!(sim.policy_status("all").nodes.leaving, 0);
}
