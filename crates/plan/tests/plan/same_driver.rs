//! Updates after which the loaded driver is the same: only its container's image is another one.

use gpu_operator_crd::{
    Phase,
    gpunode::{DisruptionScope, RolloutStep},
    reason::Reason,
};
use gpu_operator_plan::world::ContainerState;
use test_support::planned::Planned;

use crate::{
    robust::{busy, loaded},
    sim::Sim,
};

const BEFORE: &str = "{defaults: {driver: {version: 595.91.07}}}";
const MIRRORED: &str =
    "{defaults: {driver: {version: 595.91.07, image: {repository: mirror.example.com/nvidia/driver}}}}";

/// A settled fleet of two nodes, of which `a` is busy. Every write obeys the laws.
fn fleet() -> Sim {
    let mut sim = Sim::settled_fleet(BEFORE, &["a", "b"]);
    sim.law = Some(crate::law::holds);
    busy(&mut sim, "a");
    sim
}

/// Returns the image of the driver's pod on a node.
fn image(sim: &Sim, node: &str) -> String {
    sim.templates[&format!("driver@{node}")].containers[0].image.clone().expect("an image")
}

#[test]
fn the_container_of_a_loaded_driver_is_replaced_under_gpu_pods() {
    let mut sim = fleet();
    let before = sim.pods.clone();
    sim.apply_policy("all", MIRRORED);
    let mut scopes = Vec::new();
    for _ in 0..200 {
        let happened = sim.step();
        sim.sleep(1);
        for node in ["a", "b"] {
            let spec = sim.spec(node).clone();
            assert!(!spec.release_driver && !sim.node_mut(node).cordoned, "{node}");
            scopes.extend(spec.rollout.map(|rollout| (rollout.step, rollout.scope)));
            assert_eq!(
                (sim.node_mut(node).allocatable.total(), loaded(&mut sim, node)),
                (8, "595.91.07".into()),
                "{node}"
            );
        }
        if !happened && !sim.due() {
            break;
        }
    }
    assert!(!scopes.is_empty());
    assert!(scopes.iter().all(|scope| *scope == (RolloutStep::Replace, DisruptionScope::Nothing)), "{scopes:?}");
    for node in ["a", "b"] {
        assert_eq!(image(&sim, node), "mirror.example.com/nvidia/driver:595.91.07-ubuntu22.04");
        // The plugin's pod is recreated, because it uses the folder of the container that is gone.
        let toolkit = format!("toolkit@{node}");
        assert_eq!(sim.pods[&toolkit].created, before[&toolkit].created, "{toolkit} stays");
        assert_eq!(sim.status(node).phase, Phase::Ready);
    }
    let created = sim.plans.iter().map(|plan| plan.preflights().len()).sum::<usize>();
    assert_eq!(created, 1, "the other image is pulled before");
}

#[test]
fn a_driver_that_is_loaded_in_another_way_waits_for_idle_gpus() {
    type Edit = fn(&mut Sim);
    let other_env: Edit = |sim| {
        let spec = "{defaults: {driver: {version: 595.91.07, env: [{name: A, value: b}], image: {repository: mirror/driver}}}}";
        sim.apply_policy("all", spec);
    };
    let other_args: Edit = |sim| {
        sim.apply_policy("all", "{defaults: {driver: {version: 595.91.07, args: [--keep]}}}");
    };
    let proprietary: Edit = |sim| {
        sim.apply_policy("all", "{defaults: {driver: {version: 595.91.07, container: {kernelModule: Proprietary}}}}");
    };
    // Images of before 2026 store no digest.
    let unknown: Edit = |sim| {
        sim.report("a").driver.config_digest = None;
        sim.apply_policy("all", MIRRORED);
    };
    let another: Edit = |sim| {
        sim.report("a").driver.config_digest = Some("another".into());
        sim.apply_policy("all", MIRRORED);
    };
    for (which, edit) in [other_env, other_args, proprietary, unknown, another].into_iter().enumerate() {
        let mut sim = fleet();
        let before = image(&sim, "a");
        edit(&mut sim);
        sim.run(200);
        assert_eq!((image(&sim, "a"), sim.status("a").reason()), (before, Some(Reason::GpuPodsInUse)), "{which}");
        sim.gpu_pods.clear();
        sim.run(400);
        assert_eq!((sim.status("a").phase, sim.spec("a").rollout.clone()), (Phase::Ready, None), "{which}");
        assert_ne!(sim.status("a").reason(), Some(Reason::GpuPodsInUse), "{which}");
        assert_eq!(loaded(&mut sim, "a"), "595.91.07");
    }
}

#[test]
fn the_scheduler_may_retry_late_after_a_slow_termination() {
    let mut sim = fleet();
    sim.apply_policy("all", MIRRORED);
    while sim.spec("a").rollout.is_none() {
        assert!(sim.step());
    }
    sim.step();
    // The container cannot unload a driver in use, so its pod took a minute to end, and has just gone.
    sim.sleep(60);
    let pod = sim.pods.get_mut("driver@a").expect("a pod");
    let rules = "0/6 nodes are available: 1 node(s) didn't match pod anti-affinity rules, 5 node(s) didn't match …";
    pod.unschedulable = Some(rules.into());
    pod.containers.iter_mut().for_each(|container| {
        container.ready = false;
        container.state = ContainerState::Waiting { reason: String::new(), message: String::new() };
    });
    let plan = sim.plan();
    let status = plan.statuses.values().next().expect("a status");
    let stalled = status.conditions.iter().find(|condition| condition.type_ == "Stalled").expect("a condition");
    assert_eq!(stalled.status, "False", "{}", stalled.message);
}
