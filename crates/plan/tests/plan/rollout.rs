//! Rolling out: how a fleet moves from one revision to another.

use gpu_operator_plan::output::body::Kind;
use std::collections::BTreeSet;

use crate::{
    robust::{NEW, OLD, fleet, loaded, step_until_released},
    sim::{Faults, Sim},
};
use gpu_operator_crd::{
    NodeName, Phase,
    gpunode::{DisruptionScope, RolloutStep},
    keys,
    policy::Stage,
    reason::Reason,
};

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
fn a_changed_driver_is_rolled_out_one_node_at_a_time() {
    let nodes = ["a", "b", "c"];
    let mut sim = fleet(&nodes);
    sim.apply_policy("all", NEW);
    let mut order = Vec::new();
    for _ in 0..300 {
        let happened = sim.step();
        sim.sleep(1);
        let down = unready(&sim);
        assert!(down.len() <= 1, "{down:?} are down at once");
        order.extend(down.into_iter().filter(|node| !order.contains(node)).collect::<Vec<_>>());
        if !happened {
            break;
        }
    }
    assert_eq!(order, nodes);
    sim.settle();
    for node in nodes {
        assert_eq!(loaded(&mut sim, node), "590.10.01");
        assert_eq!(sim.spec(node).rollout, None);
    }
    assert_eq!(sim.sets_of(Stage::Driver).len(), 1, "the old revision is pruned");
    assert_eq!(sim.condition("all", "Ready").0, "True");
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

#[test]
fn a_new_revision_is_not_proven_by_the_previous_installation() {
    let mut sim = fleet(&["a", "b"]);
    for node in ["a", "b"] {
        sim.faults.insert(node.into(), Faults { missing_images: ["595.91.07".to_owned()].into(), ..Faults::default() });
    }
    sim.apply_policy("all", "{pools: [{name: p, driver: {version: 595.91.07, env: [{name: A, value: b}]}}]}");
    sim.run(60);
    assert_eq!(sim.status("a").reason(), Some(Reason::DriverImageNotFound));
    assert_eq!(sim.status("b").reason(), Some(Reason::RolloutPending));
    sim.faults.clear();
    sim.settle();
    assert!(unready(&sim).is_empty() && sim.gpu_nodes.values().all(|gpu_node| gpu_node.spec.rollout.is_none()));
}

#[test]
fn the_next_idle_node_is_updated_before_a_busy_one() {
    let mut sim = fleet(&["a", "b"]);
    sim.gpu_pods.insert("a".into(), vec!["team/training".into()]);
    sim.apply_policy("all", NEW);
    sim.run(100);
    assert_eq!(loaded(&mut sim, "a"), "595.91.07");
    assert_eq!(loaded(&mut sim, "b"), "590.10.01");
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::GpuPodsInUse)));
    assert_eq!(status.waits_on, ["team/training"]);
    sim.gpu_pods.clear();
    sim.settle();
    assert_eq!(loaded(&mut sim, "a"), "590.10.01");
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
fn cordon_and_drain_update_one_node_of_a_busy_fleet() {
    let nodes = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let mut sim = fleet(&nodes);
    for node in nodes {
        sim.gpu_pods.insert(node.into(), vec![format!("team/on-{node}")]);
    }
    sim.node_mut("j").cordoned = true;
    sim.apply_policy("all", NEW);
    assert_eq!(order_of_updates(&mut sim), Vec::<NodeName>::new());
    let status = sim.status("j");
    assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::GpuPodsInUse)));
    assert_eq!(status.waits_on, ["team/on-j"]);
    sim.gpu_pods.remove(&"j".into());
    assert_eq!(order_of_updates(&mut sim), ["j"]);
    for node in nodes {
        assert_eq!(loaded(&mut sim, node), if node == "j" { "590.10.01" } else { "595.91.07" }, "{node}");
    }
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
fn a_cordoned_node_whose_update_fails_halts_its_pool() {
    let mut sim = fleet(&["a", "b"]);
    sim.node_mut("b").cordoned = true;
    sim.faults.insert("b".into(), without_new_image());
    sim.apply_policy("all", ROOMY);
    assert_eq!(order_of_updates(&mut sim), ["b"]);
    sim.run(100);
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolloutHalted".into()));
    sim.faults.clear();
    sim.settle();
    assert_eq!(loaded(&mut sim, "a"), "590.10.01");
}

#[test]
fn an_update_that_was_given_up_is_not_attempted_again() {
    let mut sim = fleet(&["a", "b"]);
    // The probe does not report that it has released the driver.
    sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
    sim.apply_policy("all", &format!("{{readiness: {{progressDeadline: 1m}}, {}", &NEW[1..]));
    sim.steps(400);
    assert_eq!((sim.spec("a").updates_begun, loaded(&mut sim, "a").as_str()), (1, "595.91.07"));
    assert_eq!((sim.status("a").phase, sim.status("a").reason()), (Phase::Ready, Some(Reason::RolloutPending)));
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolloutHalted".into()));
}

#[test]
fn a_gpu_pod_that_starts_during_the_release_ends_the_update() {
    let mut sim = fleet(&["a"]);
    let before = sim.node("a").labels.clone();
    sim.apply_policy("all", NEW);
    while sim.spec("a").rollout.as_ref().map(|rollout| rollout.step) != Some(RolloutStep::Release) {
        assert!(sim.step(), "the update of the node starts");
    }
    sim.gpu_pods.insert("a".into(), vec!["team/late".into()]);
    sim.run(15);
    assert_eq!(sim.node("a").labels, before);
    assert_eq!(sim.status("a").reason(), Some(Reason::GpuPodsInUse));
    assert_eq!(sim.node("a").allocatable.total(), 8);
}

#[test]
fn a_new_plugin_leaves_the_driver_unchanged() {
    let mut sim = fleet(&["a", "b"]);
    sim.gpu_pods.insert("a".into(), vec!["team/training".into()]);
    let driver = sim.pods["driver@a"].clone();
    sim.apply_policy(
        "all",
        "{pools: [{name: p, driver: {version: 595.91.07}, devicePlugin: {image: {tag: v0.21.0}}}]}",
    );
    sim.settle();
    assert_eq!(sim.pods["driver@a"], driver);
    assert_eq!(sim.sets_of(Stage::DevicePlugin).len(), 1);
    assert!(Sim::image(sim.sets_of(Stage::DevicePlugin)[0]).ends_with(":v0.21.0"));
    assert!(unready(&sim).is_empty());
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

#[test]
fn an_update_that_turns_to_another_driver_takes_the_gpus() {
    let mut sim = fleet(&["a"]);
    sim.faults.insert("a".into(), Faults { slow: 60, ..Faults::default() });
    sim.apply_policy("all", "{pools: [{name: p, driver: {version: 595.91.07}, devicePlugin: {args: [--x]}}]}");
    sim.run(10);
    let scope = |sim: &Sim| sim.spec("a").rollout.as_ref().map(|rollout| rollout.scope);
    assert_eq!(scope(&sim), Some(DisruptionScope::Nothing));
    sim.apply_policy("all", NEW);
    step_until_released(&mut sim, "a");
    assert_eq!(scope(&sim), Some(DisruptionScope::GpuPods));
    assert!(sim.node("a").labels.contains_key(keys::CLIENTS));
    sim.faults.clear();
    sim.settle();
    assert_eq!(loaded(&mut sim, "a"), "590.10.01");
}
