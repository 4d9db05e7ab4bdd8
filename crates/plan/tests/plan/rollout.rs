//! Rolling out: how a fleet moves from one revision to another.

use gpu_operator_plan::output::body::Kind;
use std::collections::BTreeSet;

use crate::{
    robust::{NEW, OLD, fleet},
    sim::{Faults, Sim},
};
use gpu_operator_crd::{NodeName, Phase, policy::Stage, reason::Reason};

/// [`NEW`], with room for an update although another node is cordoned.
const ROOMY: &str = "{rollout: {maxUnavailable: 2}, pools: [{name: p, driver: {version: 590.10.01}}]}";

/// Returns faults of a node on which driver 590.10.01 cannot be installed.
fn without_new_image() -> Faults {
    Faults { missing_images: ["590.10.01".to_owned()].into(), ..Faults::default() }
}

/// Returns the nodes on which not all GPUs are allocatable at this time.
fn unready(sim: &Sim) -> BTreeSet<NodeName> {
    sim.nodes.values().filter(|node| node.allocatable.total() != 8).map(|node| node.name.clone()).collect()
}

#[test]
fn the_first_failure_halts_the_pool_until_the_edit_is_reverted() {
    let mut sim = fleet(&["a", "b", "c"]);
    // Node c proves in the preflight that the image exists.
    for node in ["a", "b"] {
        sim.faults.insert(node.into(), without_new_image());
    }
    sim.apply_policy("all", NEW);
    sim.run(120);
    assert_eq!(unready(&sim), ["a".into()].into());
    assert_eq!(sim.status("a").reason(), Some(Reason::DriverImageNotFound));
    assert_eq!(sim.status("b").reason(), Some(Reason::RolloutPending));
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolloutHalted".into()));
    // A spec that cannot be satisfied is reported as such, together with the halt.
    sim.apply_policy("all", "{pools: [{name: p, driver: {version: 470.256.02}}]}");
    sim.steps(90);
    assert_eq!(sim.condition("all", "Accepted"), ("False".into(), "InvalidPolicy".into()));
    let pool = sim.policy_status("all").pools[0].clone();
    assert_eq!(pool.reason(), Some(Reason::DriverUnsupported));
    assert!(pool.message.contains("; node a: "), "{}", pool.message);
    assert_eq!(sim.plan().halted[&"all".into()], [pool.name].into());
    let before = (sim.writes["node/b"], sim.writes["node/c"]);
    sim.apply_policy("all", OLD);
    sim.settle();
    assert!(unready(&sim).is_empty());
    assert_eq!(sim.condition("all", "Stalled").0, "False");
    assert!(sim.plan().halted[&"all".into()].is_empty());
    // The only change for the other nodes is that they no longer wait.
    let after = (sim.writes["node/b"], sim.writes["node/c"]);
    assert!(after.0 <= before.0 + 2 && after.1 <= before.1 + 2, "{before:?} {after:?}");
    assert_eq!(sim.sets_of(Stage::Driver).len(), 1);
}

/// Runs until nothing changes, and returns the nodes in the order in which their updates begin.
fn order_of_updates(sim: &mut Sim) -> Vec<NodeName> {
    let mut order: Vec<NodeName> = Vec::new();
    for _ in 0..300 {
        let happened = sim.step();
        sim.sleep(1);
        let moving: Vec<_> = sim.nodes.keys().filter(|node| sim.is_moving((*node).clone())).cloned().collect();
        assert!(moving.len() <= 1, "{moving:?} are updated at once");
        order.extend(moving.into_iter().filter(|node| !order.contains(node)).collect::<Vec<_>>());
        if !happened {
            break;
        }
    }
    order
}

#[test]
fn a_cordoned_node_is_updated_first() {
    let mut sim = fleet(&["a", "b", "c"]);
    sim.node_mut("c").cordoned = true;
    sim.apply_policy("all", ROOMY);
    assert_eq!(order_of_updates(&mut sim), ["c", "a", "b"]);
    let status = sim.status("c");
    assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::AllGpusAllocatable)));
    assert!(sim.node("c").cordoned, "the operator leaves the cordon");
    assert_eq!(sim.plan().halted[&"all".into()].len(), 0);
}

#[test]
fn a_cordoned_node_that_cannot_be_updated_blocks_no_other() {
    for ready in [true, false] {
        let mut sim = fleet(&["a", "b"]);
        sim.gpu_pods.insert("b".into(), vec!["team/training".into()]);
        (sim.node_mut("b").cordoned, sim.node_mut("b").ready) = (true, ready);
        sim.apply_policy("all", ROOMY);
        assert_eq!(order_of_updates(&mut sim), ["a"], "{ready}");
        sim.gpu_pods.clear();
        sim.node_mut("b").ready = true;
        assert_eq!(order_of_updates(&mut sim), ["b"], "{ready}");
    }
}

#[test]
fn a_fix_is_applied_to_all_failing_nodes_at_once() {
    let nodes = ["a", "b", "c", "d"];
    let mut sim = Sim::new().policy("all", NEW);
    for node in nodes {
        sim.join(node, "2330", 8);
        sim.faults.insert(node.into(), without_new_image());
    }
    sim.run(30);
    assert_eq!(unready(&sim).len(), 4);
    sim.apply_policy("all", OLD);
    sim.run(12);
    assert!(unready(&sim).is_empty(), "{:?}", unready(&sim));
}

#[test]
fn nothing_is_removed_for_a_daemon_set_that_is_rejected() {
    for spec in ["{defaults: {devicePlugin: {args: [--new]}}}", "{defaults: {driver: {version: 580.173.02}}}"] {
        let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
        let (pods, sets) = (sim.pods.clone(), sim.sets.clone());
        sim.apply_policy("all", spec);
        for _ in 0..20 {
            let mut plan = sim.plan();
            plan.writes.retain(|write| write.target.kind != Kind::DaemonSet);
            sim.carry_out_first(&plan, usize::MAX);
            sim.sleep(1);
        }
        assert_eq!((&sim.pods, &sim.sets), (&pods, &sets), "{spec}");
        assert_eq!(sim.condition("all", "Ready").0, "True", "{spec}");
        assert_eq!(sim.status("a").reason(), Some(Reason::RolloutPending), "{spec}");
        sim.settle();
        assert_eq!(
            sim.status("a").reason(),
            Some(Reason::AllGpusAllocatable),
            "{spec}: the node is updated once the DaemonSet is accepted"
        );
    }
}
