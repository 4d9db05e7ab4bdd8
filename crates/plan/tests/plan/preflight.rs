//! The preflight of a rollout: one node pulls the new images before the first node is updated.

use std::collections::BTreeSet;

use gpu_operator_crd::{NodeName, Phase, policy::Stage, reason::Reason};
use gpu_operator_plan::{
    output::body::Kind,
    world::{ContainerState, PodEnd, PodFacts, Role, TaintFact},
};
use k8s_openapi::api::core::v1::Pod;
use test_support::planned::Planned;

use crate::{
    robust::{loaded, rollout_spec, updating_fleet},
    sim::{Faults, Sim},
};

const NODES: [&str; 5] = ["a", "b", "c", "d", "e"];
const OLD: &str = "595.91.07";
const NEW: &str = "590.10.01";

fn without(tag: &str) -> Faults {
    Faults { missing_images: [tag.to_owned()].into(), ..Faults::default() }
}

/// Returns the nodes on which preflight pods were created, in their order.
fn tried(sim: &Sim) -> Vec<NodeName> {
    let pods = sim.plans.iter().flat_map(|plan| plan.preflights().into_values());
    let facts = pods.filter_map(PodFacts::of);
    facts.map(|pod| pod.node).collect()
}

fn preflights(sim: &Sim) -> usize {
    sim.pods.values().filter(|pod| pod.role == Role::Preflight).count()
}

/// Returns the nodes that have begun an update.
fn begun(sim: &Sim) -> BTreeSet<&str> {
    NODES.into_iter().filter(|node| sim.spec(*node).updates_begun > 0).collect()
}

/// Returns the pods of an update.
pub(crate) fn every_shape() -> Vec<(&'static str, Pod)> {
    let mut sim = updating_fleet(&NODES, "{}");
    sim.run(40);
    let pods: Vec<_> = sim.plans.iter().flat_map(|plan| plan.preflights().into_values()).cloned().collect();
    assert!(!pods.is_empty(), "an update begins with a preflight");
    pods.into_iter().map(|pod| ("preflight", pod)).collect()
}

#[test]
fn without_its_image_a_rollout_does_not_begin() {
    let mut sim = updating_fleet(&NODES, "{maxParallel: 2, maxUnavailable: 100%, gpuPods: {mode: Await}}");
    sim.faults = NODES.map(|node| (node.into(), without(NEW))).into();
    sim.run(400);
    assert_eq!(tried(&sim), ["a", "b", "c"], "three nodes try it");
    assert_eq!((begun(&sim), preflights(&sim)), (BTreeSet::new(), 3));
    assert!(sim.nodes.values().all(|node| !node.cordoned && node.allocatable.total() == 8));
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolloutHalted".into()));
    let message = sim.message("all", "Stalled");
    let why = "the images of the new revision cannot be pulled: pod preflight-";
    assert!(message.contains(why) && message.contains("check driver.version"), "{message}");
    let status = sim.status("e");
    assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::RolloutPending)));
    assert!(status.message.contains("see condition Stalled"), "{}", status.message);
    // Kubelet tries again by itself, so the rollout goes on once the image is there.
    sim.faults.clear();
    sim.run(400);
    assert!(NODES.into_iter().all(|node| loaded(&mut sim, node) == NEW));
    assert_eq!((sim.condition("all", "Stalled").0, preflights(&sim)), ("False".into(), 0));
}

#[test]
fn the_images_are_pulled_before_any_update_begins() {
    let mut sim = updating_fleet(&NODES, "{}");
    while preflights(&sim) == 0 {
        assert!(sim.step());
    }
    assert_eq!(begun(&sim), BTreeSet::new());
    let pulling = "update pending: the images of the new revision are being pulled on node a";
    sim.step_with(sim.plan());
    let pod = sim.pods.values().find(|pod| pod.role == Role::Preflight).expect("a pod");
    // Only the driver's image is another one, and it does not contain the command.
    assert_eq!(pod.containers.iter().map(|container| container.name.as_str()).collect::<Vec<_>>(), ["driver-driver"]);
    assert!(matches!(&pod.containers[0].state, ContainerState::Ended(exit) if exit.code != 0));
    let reported = sim.plans.iter().flat_map(|plan| plan.node_statuses().into_iter());
    let waits: BTreeSet<_> =
        reported.filter(|(_, status)| status.message == pulling).map(|(node, _)| node.to_string()).collect();
    assert_eq!(waits, ["a".to_owned()].into(), "the others wait for the first one");
    sim.run(400);
    assert!(NODES.into_iter().all(|node| loaded(&mut sim, node) == NEW));
    assert_eq!((tried(&sim), preflights(&sim)), (vec!["a".into()], 0), "once, and nothing is left");
}

#[test]
fn a_node_with_a_problem_of_its_own_does_not_hold_the_others() {
    for away in [false, true] {
        let mut sim = updating_fleet(&NODES, "{maxFailures: 5, maxParallel: 2, maxUnavailable: 100%}");
        sim.faults.insert("a".into(), without(NEW));
        while preflights(&sim) == 0 {
            sim.step();
        }
        if away {
            // It goes before it has pulled anything.
            sim.node_mut("a").ready = false;
            sim.pods.values_mut().filter(|pod| pod.role == Role::Preflight).for_each(|pod| pod.containers.clear());
        }
        sim.run(400);
        assert_eq!(tried(&sim), ["a", "b"]);
        assert!(NODES[1..].iter().all(|node| loaded(&mut sim, node) == NEW), "{:?}", sim.status("b"));
        assert_eq!(preflights(&sim), 0, "others use the images, so node a needs no preflight of its own");
    }
}

#[test]
fn nodes_where_no_operand_runs_try_nothing() {
    let strategy = "tolerations: [], driver: {version: 590.10.01}";
    let mut sim = updating_fleet(&NODES, "{}");
    sim.apply_policy("all", &format!("{{defaults: {{{strategy}}}}}"));
    sim.node_mut("a").ready = false;
    let taint = TaintFact { key: "team".into(), value: "x".into(), effect: "NoSchedule".into() };
    sim.node_mut("b").taints.push(taint);
    sim.node_mut("c").deleting = true;
    sim.run(400);
    assert_eq!(tried(&sim), ["d"]);
}

/// Returns the preflight pod of a fleet of one node.
fn only_pod(sim: &mut Sim) -> &mut PodFacts {
    while preflights(sim) == 0 {
        assert!(sim.step());
    }
    sim.pods.values_mut().find(|pod| pod.role == Role::Preflight).expect("a pod")
}

/// Returns the message of the policy's condition Stalled at the time when the plan is due again.
fn stalled_when_due(sim: &mut Sim, minutes: i64) -> String {
    let at = sim.plan().check_again.expect("a time");
    assert_eq!(at.duration_since(sim.now).as_mins(), minutes);
    sim.now = at;
    let plan = sim.plan();
    let status = plan.statuses.values().next().expect("a status");
    let stalled = status.conditions.iter().find(|condition| condition.type_ == "Stalled").expect("a condition");
    stalled.message.clone()
}

#[test]
fn a_pull_that_does_not_end_is_given_up() {
    let mut sim = updating_fleet(&["a"], "{}");
    only_pod(&mut sim).containers.clear();
    assert_eq!(sim.condition("all", "Stalled").0, "False");
    let message = stalled_when_due(&mut sim, 30);
    assert!(message.contains("has not pulled its images by its deadline"), "{message}");
}

#[test]
fn a_pod_that_cannot_run_is_replaced() {
    let mut sim = updating_fleet(&["a"], "{}");
    let pod = only_pod(&mut sim);
    pod.containers.clear();
    let full = PodEnd { succeeded: false, reason: "OutOfpods".into(), message: "full".into(), at: None };
    pod.end = Some(full);
    let name = pod.name.clone();
    assert_eq!(sim.plan().deleted(Kind::Pod), BTreeSet::new());
    let message = stalled_when_due(&mut sim, 5);
    assert!(message.contains("OutOfpods"), "{message}");
    assert_eq!(sim.plan().deleted(Kind::Pod), [name].into());
    sim.run(400);
    assert_eq!(loaded(&mut sim, "a"), NEW);
}

#[test]
fn changes_without_new_images_need_no_preflight() {
    let mut sim = updating_fleet(&NODES, "{}");
    sim.apply_policy(
        "all",
        "{defaults: {driver: {version: 595.91.07, env: [{name: A, value: b}]}, devicePlugin: {args: [--pass-device-specs]}}}",
    );
    sim.run(400);
    assert_eq!(begun(&sim).len(), 5);
    assert_eq!(tried(&sim), [""; 0].map(NodeName::from));
}

#[test]
fn a_preflight_waits_neither_for_a_window_nor_for_a_slot() {
    let mut sim = updating_fleet(&NODES, "{windows: [{start: '11:00', duration: 2h, timeZone: UTC}]}");
    sim.faults = NODES.map(|node| (node.into(), without(NEW))).into();
    sim.run(100);
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolloutHalted".into()));
    sim.faults.clear();
    sim.run(100);
    assert!(sim.status("a").message.contains("the next window"), "{}", sim.status("a").message);
    assert_eq!((begun(&sim), preflights(&sim)), (BTreeSet::new(), 3), "kept until then");
    sim.apply_policy("all", &rollout_spec("{paused: true}", NEW));
    sim.run(100);
    assert_eq!(preflights(&sim), 0, "a rollout that is paused needs none");
}

#[test]
fn each_operating_system_has_its_own_preflight() {
    let mut sim = Sim::new().policy("all", &rollout_spec("{}", OLD));
    for (node, version) in [("a", "22.04"), ("b", "24.04"), ("c", "22.04"), ("d", "24.04"), ("e", "24.04")] {
        sim.join_silent(node, &["2330"; 8]);
        sim.report(node).os.version_id = version.into();
        if version == "24.04" {
            sim.faults.insert(node.into(), without(&format!("{NEW}-ubuntu24.04")));
        }
    }
    sim.settle();
    sim.law = Some(crate::law::holds);
    sim.apply_policy("all", &rollout_spec("{}", NEW));
    sim.run(400);
    let by_version = |sim: &mut Sim, version: &str| {
        NODES.into_iter().filter(|node| loaded(sim, node) == version).collect::<Vec<_>>()
    };
    assert_eq!((by_version(&mut sim, NEW), by_version(&mut sim, OLD)), (vec!["a", "c"], vec!["b", "d", "e"]));
    assert_eq!(sim.condition("all", "Stalled").1, "RolloutHalted");
}

#[test]
fn a_missing_precompiled_image_is_found_before_an_update() {
    let precompiled = "{defaults: {driver: {container: {precompiled: true}}}}";
    let mut sim = Sim::new().policy("all", &rollout_spec("{maxParallel: 5, maxUnavailable: 100%}", OLD));
    for node in NODES {
        sim.join_silent(node, &["2330"; 8]);
        sim.report(node).os.version_id = "24.04".into();
        sim.faults.insert(node.into(), without("595-6.8.0-60-generic-ubuntu24.04"));
    }
    sim.settle();
    sim.apply_policy("all", precompiled);
    sim.run(400);
    assert_eq!((begun(&sim), preflights(&sim)), (BTreeSet::new(), 0), "the compiled driver is the one that they have");
    for node in NODES {
        assert_eq!(sim.status(node).reason(), Some(Reason::PrecompiledImageMissing));
    }
    assert_eq!((tried(&sim), sim.condition("all", "Stalled").0), (vec!["a".into()], "False".into()));
    assert_eq!(sim.sets_of(Stage::Driver).len(), 1);
}

#[test]
fn a_node_that_lacks_disk_space_pulls_last() {
    let mut sim = updating_fleet(&NODES, "{maxUnavailable: 100%}");
    sim.faults = NODES.map(|node| (node.into(), without(NEW))).into();
    for node in ["a", "b", "d"] {
        sim.node_mut(node).has_pressure = true;
    }
    sim.run(400);
    assert_eq!(tried(&sim), ["c", "e", "a"]);
}
