//! Budgets of rollouts: how many nodes are updated at a time, which ones, and what happens if one fails.

use std::collections::BTreeSet;

use gpu_operator_crd::{NodeName, Phase, gpunode::RolloutStep, keys, policy_status::RolloutStatus, reason::Reason};

use crate::{
    law,
    properties::events::taint_at_start,
    robust::{busy, loaded, rollout_spec, updating_fleet},
    sim::{Faults, Sim},
    updates,
};

const NODES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const NEW: &str = "590.10.01";

/// A settled fleet of eight nodes, whose policy has this strategy and another driver version now. Every write obeys the laws.
fn updating(strategy: &str) -> Sim {
    updating_fleet(&NODES, strategy)
}

fn spec(strategy: &str) -> String {
    rollout_spec(strategy, NEW)
}

fn moving(sim: &Sim) -> BTreeSet<NodeName> {
    sim.nodes.keys().filter(|node| sim.is_moving((*node).clone())).cloned().collect()
}

fn updated(sim: &mut Sim) -> Vec<&'static str> {
    NODES.into_iter().filter(|node| loaded(sim, node) == NEW).collect()
}

/// Runs until nothing changes, and returns the greatest number of nodes that were updated at once.
fn most_at_once(sim: &mut Sim) -> usize {
    let mut most = 0;
    for _ in 0..400 {
        let happened = sim.step();
        sim.sleep(1);
        most = most.max(moving(sim).len());
        if !happened && !sim.due() {
            break;
        }
    }
    most
}

fn lacks_image() -> Faults {
    Faults { missing_images: [NEW.to_owned()].into(), ..Faults::default() }
}

fn step_until_replaced(sim: &mut Sim, node: &str) {
    for _ in 0..100 {
        if sim.spec(node).rollout.as_ref().map(|rollout| rollout.step) == Some(RolloutStep::Replace) {
            return;
        }
        sim.step();
        sim.sleep(1);
    }
    panic!("the driver of node {node} is not replaced");
}

#[test]
fn as_many_nodes_as_the_strategy_allows_are_updated_at_once() {
    for (strategy, most) in [
        ("{}", 1),
        ("{maxParallel: 3, maxUnavailable: 100%}", 3),
        ("{maxParallel: 100, maxUnavailable: 3}", 3),
        // A quarter of eight nodes.
        ("{maxParallel: 100}", 2),
        ("{maxParallel: 100, maxUnavailable: 1%}", 1),
    ] {
        let mut sim = updating(strategy);
        assert_eq!(most_at_once(&mut sim), most, "{strategy}");
        assert_eq!(updated(&mut sim), NODES, "{strategy}");
        assert_eq!(sim.policy_status("all").rollout, RolloutStatus::default(), "{strategy}");
    }
}

#[test]
fn the_limits_of_a_pool_apply_beside_those_of_its_policy() {
    let spec = |version: &str| {
        format!(
            "{{rollout: {{maxParallel: 4, maxUnavailable: 100%}}, pools: [{{name: p, match: {{models: [t4]}}, \
             rollout: {{maxParallel: 1}}}}], defaults: {{driver: {{version: {version}}}}}}}"
        )
    };
    let mut sim = Sim::new().policy("all", &spec("595.91.07"));
    for node in NODES {
        sim.join(node, if node < "e" { "1eb8" } else { "2330" }, 1);
    }
    sim.settle();
    sim.law = Some(law::holds);
    sim.apply_policy("all", &spec(NEW));
    let (mut most, mut most_of_pool) = (0, 0);
    for _ in 0..200 {
        sim.step();
        sim.sleep(1);
        let moving = moving(&sim);
        most = most.max(moving.len());
        most_of_pool = most_of_pool.max(moving.iter().filter(|node| node.as_str() < "e").count());
    }
    assert_eq!((most, most_of_pool, updated(&mut sim)), (4, 1, NODES.to_vec()));
}

#[test]
fn unavailable_nodes_count_and_may_still_be_updated() {
    let mut sim = updating("{maxParallel: 100, maxUnavailable: 2}");
    sim.node_mut("g").cordoned = true;
    sim.node_mut("h").cordoned = true;
    most_at_once(&mut sim);
    assert_eq!(updated(&mut sim), ["g", "h"]);
    let message = sim.message("all", "Reconciling");
    assert!(message.contains("rollout.maxUnavailable is reached: 2 nodes"), "{message}");
    assert!(sim.node("g").cordoned && !sim.node("g").own_cordon);
    sim.node_mut("h").cordoned = false;
    assert_eq!(most_at_once(&mut sim), 1);
    assert_eq!(updated(&mut sim), NODES);
}

#[test]
fn a_rollout_halts_at_its_failures_until_they_are_cured() {
    let mut sim = updating("{maxParallel: 2, maxUnavailable: 100%, maxFailures: 2}");
    for node in ["b", "d"] {
        sim.faults.insert(node.into(), lacks_image());
    }
    most_at_once(&mut sim);
    assert_eq!(updated(&mut sim).len(), 2, "{:?}", updated(&mut sim));
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolloutHalted".into()));
    assert_eq!(sim.policy_status("all").rollout.failed, 2);
    // A failed node keeps its slot until its deadline, and stays failed.
    assert_eq!(sim.policy_status("all").rollout.slots.len(), 2);
    sim.sleep(31 * 60);
    sim.run(60);
    let rollout = sim.policy_status("all").rollout;
    assert_eq!((rollout.slots.len(), &*rollout.pools[0].failed), (0, &["b".into(), "d".into()][..]));
    assert_eq!((moving(&sim).len(), rollout.failed), (0, 2));
    sim.faults.clear();
    sim.settle();
    assert_eq!(updated(&mut sim), NODES);
    assert_eq!(sim.policy_status("all").rollout, RolloutStatus::default());
}

#[test]
fn a_failed_node_that_is_deleted_stays_counted() {
    let mut sim = updating("{}");
    sim.faults.insert("a".into(), lacks_image());
    sim.run(60);
    sim.sleep(31 * 60);
    sim.run(60);
    sim.leave(&"a".into());
    sim.run(60);
    assert_eq!(updated(&mut sim), [""; 0]);
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolloutHalted".into()));
    let policy = sim.policies.get_mut(&"all".into()).expect("a policy");
    policy.metadata.annotations = Some([(keys::RETRY.to_owned(), "1".to_owned())].into());
    sim.settle();
    assert_eq!(updated(&mut sim), &NODES[1..]);
}

#[test]
fn a_paused_rollout_begins_nothing() {
    let mut sim = updating("{paused: true}");
    assert_eq!(most_at_once(&mut sim), 0);
    let message = sim.message("all", "Reconciling");
    assert!(message.contains("8 of 8 nodes still have the previous revision: the rollout is paused"), "{message}");
    sim.apply_policy("all", &spec("{paused: false}"));
    most_at_once(&mut sim);
    assert_eq!(updated(&mut sim), NODES);
}

#[test]
fn a_node_that_awaits_its_pods_is_cordoned_and_uncordoned() {
    let mut sim = updating("{gpuPods: {mode: Await, timeout: 1h}}");
    busy(&mut sim, "a");
    sim.run(30);
    assert!(sim.node("a").own_cordon && sim.node("a").cordoned);
    assert_eq!(moving(&sim), ["a".into()].into());
    let status = sim.status("a");
    assert_eq!(
        (status.phase, status.reason(), &*status.waits_on),
        (Phase::Ready, Some(Reason::GpuPodsInUse), &["team/training".into()][..])
    );
    assert_eq!(sim.policy_status("all").nodes.excluded, 0, "its own cordon does not exclude a node");
    sim.gpu_pods.clear();
    most_at_once(&mut sim);
    assert_eq!(updated(&mut sim), NODES);
    assert!(sim.nodes.values().all(|node| !node.cordoned && !node.own_cordon));
}

#[test]
fn pods_that_do_not_end_in_time_end_the_turn_of_their_node() {
    let mut sim = updating("{gpuPods: {mode: Await, timeout: 1h}}");
    busy(&mut sim, "a");
    sim.run(30);
    sim.sleep(3600);
    most_at_once(&mut sim);
    assert!(!sim.node("a").cordoned && !sim.is_moving("a"));
    assert_eq!(updated(&mut sim), &NODES[1..], "the others have their updates_begun");
    assert!(sim.status("a").message.contains("the next attempt begins at"), "{}", sim.status("a").message);
    sim.sleep(3600);
    sim.run(30);
    assert!(sim.node("a").cordoned && sim.is_moving("a"));
}

#[test]
fn a_cordon_that_is_not_undone_yet_takes_a_slot() {
    let mut sim = updating("{maxUnavailable: 100%}");
    sim.step();
    let node = sim.node_mut("h");
    (node.cordoned, node.own_cordon) = (true, true);
    let plan = sim.plan();
    assert!(!plan.writes.iter().any(updates::begins_an_update), "{plan:#?}");
    most_at_once(&mut sim);
    assert_eq!(updated(&mut sim), NODES);
    assert!(!sim.node("h").cordoned);
}

#[test]
fn an_update_that_moves_to_another_pool_counts_there() {
    let strategy = "{maxParallel: 2, maxUnavailable: 100%, maxFailures: 9}, pools: [{name: p, match: {nodeSelector: {matchLabels: {zone: a}}}, \
                    rollout: {maxParallel: 1}}]";
    let mut sim = updating(strategy);
    // Its update does not end before its deadline.
    sim.faults.insert("a".into(), lacks_image());
    step_until_replaced(&mut sim, "a");
    for node in ["a", "c", "d"] {
        sim.label(node, "zone", Some("a"));
    }
    for _ in 0..60 {
        sim.step();
        sim.sleep(1);
        let moving = moving(&sim);
        let is_moving = |node: &str| moving.iter().any(|name| name == node);
        assert!(is_moving("a") && !is_moving("c") && !is_moving("d"), "{moving:?}");
    }
    assert_eq!(updated(&mut sim), ["b", "e", "f", "g", "h"], "those of the other pool go on");
}

#[test]
fn a_slot_that_is_not_used_is_spent_before_it_is_freed() {
    let mut sim = updating("{}");
    // The operator is killed after the write of the ledger, and a GPU pod starts on the node.
    while sim.policy_status("all").rollout.slots.is_empty() {
        let plan = sim.plan();
        let ledger = plan
            .clone()
            .take_writes()
            .concat()
            .iter()
            .position(|write| matches!(write.body, gpu_operator_plan::output::body::Body::Ledger(_)));
        match ledger {
            Some(_) => {
                let ledger: Vec<_> = plan
                    .writes
                    .iter()
                    .filter(|write| matches!(write.body, gpu_operator_plan::output::body::Body::Ledger(_)))
                    .collect();
                assert!(sim.write(ledger[0]).is_ok());
            }
            None => assert!(sim.step_with(plan)),
        }
    }
    assert_eq!(sim.policy_status("all").rollout.slots[0].node, "a");
    busy(&mut sim, "a");
    let updates_begun = sim.spec("a").updates_begun;
    sim.step();
    assert_eq!((sim.spec("a").updates_begun, sim.is_moving("a")), (updates_begun + 1, false));
    most_at_once(&mut sim);
    assert_eq!(updated(&mut sim), &NODES[1..]);
    assert_eq!(sim.spec("b").rollout.as_ref().map(|rollout| rollout.step), None::<RolloutStep>);
}

#[test]
fn a_pool_without_anything_proven_installs_within_the_limits() {
    let mut sim = updating("{maxFailures: 1}");
    sim.faults.insert("a".into(), lacks_image());
    sim.run(300);
    for node in ["x", "y"] {
        sim.join(node, "2330", 8);
        let report = sim.report(node);
        (report.os.id, report.os.version_id) = ("ubuntu".into(), "24.04".into());
    }
    sim.steps(20);
    assert!(!sim.is_moving("x") && !sim.is_moving("y"), "node a has the only slot");
    sim.steps(31 * 60);
    sim.run(600);
    assert_eq!((loaded(&mut sim, "x"), loaded(&mut sim, "y")), (NEW.into(), NEW.into()));
}

#[test]
fn a_node_that_an_autoscaler_removes_is_not_updated() {
    let mut sim = updating("{}");
    taint_at_start(sim.node_mut("a"), "ToBeDeletedByClusterAutoscaler", "NoSchedule");
    most_at_once(&mut sim);
    assert_eq!(updated(&mut sim), &NODES[1..]);
}
