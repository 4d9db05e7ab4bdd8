//! Failures around the operator, and changes that others make to its objects, do not harm working nodes.

use std::time::Duration;

use crate::sim::{Faults, Sim};
use gpu_operator_crd::{ClusterGpuPolicyStatus, Open, Phase, gpunode::RolloutStep, policy::Stage, reason::Reason};
use gpu_operator_plan::world::{Concern, Deletion, HeldWrite, PodFacts, Role};
use kube::ResourceExt;

pub(crate) const OLD: &str = "{pools: [{name: p, driver: {version: 595.91.07}}]}";
pub(crate) const NEW: &str = "{pools: [{name: p, driver: {version: 590.10.01}}]}";

pub(crate) fn fleet(nodes: &[&str]) -> Sim {
    Sim::settled_fleet(OLD, nodes)
}

/// Returns the spec of a policy with this strategy of rollouts and this driver.
pub(crate) fn rollout_spec(strategy: &str, driver: &str) -> String {
    format!("{{rollout: {strategy}, defaults: {{driver: {{version: {driver}}}}}}}")
}

/// Returns a settled fleet with driver 595.91.07, whose policy has this strategy and driver 590.10.01 now. Every write obeys the laws.
pub(crate) fn updating_fleet(nodes: &[&str], strategy: &str) -> Sim {
    let mut sim = Sim::settled_fleet(&rollout_spec(strategy, "595.91.07"), nodes);
    sim.law = Some(crate::law::holds);
    sim.apply_policy("all", &rollout_spec(strategy, "590.10.01"));
    sim
}

pub(crate) fn busy(sim: &mut Sim, node: &str) {
    sim.gpu_pods.insert(node.into(), vec!["team/training".into()]);
}

/// Returns the version of the driver that is loaded on a node.
pub(crate) fn loaded(sim: &mut Sim, node: &str) -> String {
    sim.report(node).driver.loaded.clone().unwrap_or_default()
}

pub(crate) fn step_until_released(sim: &mut Sim, node: &str) {
    let mut waited = 0;
    while sim.spec(node).rollout.as_ref().map(|rollout| rollout.step) != Some(RolloutStep::Release) {
        // A silent probe is waited for.
        if !sim.step() {
            sim.sleep(1);
            waited += 1;
        }
        assert!(waited < 100, "the update of the node starts");
    }
}

const LEAVING_PLUGIN: &str = "old-device-plugin@a";

/// Adds the pod of an old device plugin to node `a` that terminates slowly.
pub(crate) fn add_leaving_plugin(sim: &mut Sim) {
    let slow = PodFacts {
        name: LEAVING_PLUGIN.into(),
        role: Role::Operand(Stage::DevicePlugin),
        revision: Some("old".into()),
        deletion: Some(Deletion { since: sim.now.into(), grace: Duration::ZERO }),
        ..sim.pods["driver@a"].clone()
    };
    sim.pods.insert(LEAVING_PLUGIN.into(), slow);
}

#[test]
fn a_late_fix_has_its_own_deadline() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", NEW);
    let missing = Faults { missing_images: ["590.10.01".to_owned()].into(), ..Faults::default() };
    sim.faults.insert("a".into(), missing);
    sim.run(30);
    sim.sleep(3600);
    sim.run(3);
    assert_eq!(sim.status("a").reason(), Some(Reason::DriverImageNotFound));
    sim.apply_policy("all", OLD);
    for _ in 0..10 {
        sim.step();
        sim.sleep(1);
        assert_ne!(sim.status("a").reason(), Some(Reason::ProgressDeadlineExceeded));
    }
    assert_eq!(sim.status("a").phase, Phase::Ready);
}

#[test]
fn a_node_not_ready_during_its_update_is_named_for_the_halt() {
    let mut sim = fleet(&["a", "b"]);
    sim.apply_policy("all", NEW);
    step_until_released(&mut sim, "a");
    sim.node_mut("a").ready = false;
    sim.run(20);
    assert_eq!(sim.condition("all", "Stalled").0, "False");
    let message = sim.message("all", "Reconciling");
    assert!(message.contains("node a is being updated and has reason NodeNotReady; bring it back"), "{message}");
    // It has its slot until its deadline.
    sim.sleep(30 * 60);
    sim.run(20);
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolloutHalted".into()));
    assert!(sim.policy_status("all").rollout.slots.is_empty() && !sim.is_moving("b"));
    sim.node_mut("a").ready = true;
    sim.settle();
    assert_eq!(loaded(&mut sim, "b"), "590.10.01");
}

#[test]
fn a_pool_may_have_the_name_of_a_model() {
    let mut sim = Sim::new().policy(
        "all",
        "{pools: [{name: nvidia-h100-80gb, match: {nodeSelector: {matchLabels: {zone: a}}}, devicePlugin: {image: {tag: v9}}}]}",
    );
    sim.join("a", "2330", 8);
    sim.join("b", "2330", 8);
    sim.node_mut("a").labels.insert("zone".into(), "a".into());
    sim.settle();
    let mut images: Vec<_> = sim.sets_of(Stage::DevicePlugin).into_iter().map(Sim::image).collect();
    images.sort();
    assert_eq!(images, ["nvcr.io/nvidia/k8s-device-plugin:v0.19.3", "nvcr.io/nvidia/k8s-device-plugin:v9"]);
}

#[test]
fn a_pod_that_cannot_start_gets_the_changed_template() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", OLD);
    let missing = Faults { missing_images: ["595.91.07".to_owned()].into(), ..Faults::default() };
    sim.faults.insert("a".into(), missing);
    sim.run(30);
    let stuck = sim.pods["driver@a"].clone();
    // A pull secret does not change the revision, but the pod was created without it.
    sim.apply_policy(
        "all",
        "{images: {pullSecrets: [{name: forgotten}]}, pools: [{name: p, driver: {version: 595.91.07}}]}",
    );
    sim.run(3);
    let recreated = sim.pods["driver@a"].clone();
    assert_eq!(recreated.revision, stuck.revision);
    assert_ne!(recreated.applied, stuck.applied);
    sim.faults.clear();
    sim.settle();
    // A running pod is not recreated, even if its template has changed.
    let running = sim.pods["driver@a"].clone();
    sim.apply_policy("all", OLD);
    sim.settle();
    assert_eq!(sim.pods["driver@a"], running);
}

#[test]
fn values_of_a_newer_version_keep_nothing_from_being_served() {
    let unknown = || Open::<Reason>::Other("OfTomorrow".into());
    for (phase, served) in [(Phase::Ready, "8/8"), (Phase::Driver, "8/8")] {
        let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
        let status = sim.gpu_nodes.get_mut(&"a".into()).and_then(|gpu_node| gpu_node.status.as_mut());
        let status = status.expect("a status");
        (status.phase, status.reason) = (phase, Some(unknown()));
        let policy = sim.policies.get_mut(&"all".into()).and_then(|policy| policy.status.as_mut());
        policy.expect("a status").pools.iter_mut().for_each(|pool| pool.reason = Some(unknown()));
        sim.settle();
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::AllGpusAllocatable)));
        assert_eq!(status.gpus.summary, served);
        assert_eq!(sim.condition("all", "Stalled").0, "False");
    }
}

#[test]
fn the_status_of_a_deleted_node_observes_the_generation() {
    let mut sim = fleet(&["a", "b"]);
    sim.node_mut("a").deleting = true;
    sim.settle();
    let generation = |sim: &Sim| sim.gpu_nodes[&"a".into()].metadata.generation;
    let before = generation(&sim);
    sim.apply_policy("all", NEW);
    sim.settle();
    assert_ne!(generation(&sim), before);
    assert_eq!(sim.status("a").observed_generation, generation(&sim));
}

#[test]
fn a_rejected_write_stalls_only_the_policy_that_it_concerns() {
    let mut sim = Sim::new()
        .policy("one", "{nodeSelector: {matchLabels: {team: one}}}")
        .policy("two", "{nodeSelector: {matchLabels: {team: two}}}");
    for (node, team) in [("a", "one"), ("b", "two")] {
        sim.join(node, "2330", 8);
        sim.label(node, "team", Some(team));
    }
    sim.settle();
    let stalled = |concerns: Concern| {
        let mut world = sim.world();
        world.held_writes.push(HeldWrite { concerns, reason: Reason::ApplyFailed, message: "no".into() });
        let plan = sim.plan_for(world);
        let is_stalled = |status: &ClusterGpuPolicyStatus| {
            status.conditions.iter().any(|found| found.type_ == "Stalled" && found.reason == "ApplyFailed")
        };
        let stalled = plan.statuses.iter().filter(|(_, status)| is_stalled(status));
        stalled.map(|(name, _)| name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(stalled(Concern::Node("a".into())), ["one"]);
    assert_eq!(stalled(Concern::Policy("two".into())), ["two"]);
    assert_eq!(stalled(Concern::Node("unknown".into())), [""; 0]);
    assert_eq!(stalled(Concern::Fleet), ["one", "two"]);
}

#[test]
fn a_gpu_that_was_missing_before_does_not_halt_the_pool() {
    let mut sim = fleet(&["a", "b"]);
    sim.report("a").gpus.pop();
    sim.run(30);
    sim.apply_policy("all", NEW);
    sim.run(150);
    assert_eq!(sim.status("a").reason(), Some(Reason::GpuMissing));
    assert_eq!(loaded(&mut sim, "b"), "590.10.01");
}

#[test]
fn a_busy_node_keeps_a_driver_whose_objects_were_deleted() {
    let mut sim = fleet(&["a"]);
    busy(&mut sim, "a");
    let before = sim.node("a").labels.clone();
    sim.gpu_nodes.clear();
    let set = sim.sets_of(Stage::Driver)[0].name_any();
    sim.delete_set(&set);
    for _ in 0..10 {
        sim.step();
        assert_eq!(sim.node("a").labels, before);
    }
    assert!(sim.sets.contains_key(&set));
}
