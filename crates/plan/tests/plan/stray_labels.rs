//! Labels that place the pods of the stages, changed by other users: the node gets its revisions back at once, and nothing else happens.

use gpu_operator_plan::output::body::{Kind, Part};
use std::collections::BTreeMap;
use test_support::planned::Planned;

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{NodeName, gpunode::RolloutStep, keys, policy::Stage, reason::Reason};
use gpu_operator_plan::world::{ContainerState, PodFacts};

use crate::{
    robust::{busy, step_until_released},
    sim::{Faults, Sim},
};

const MPS: &str = "{defaults: {driver: {version: 595.91.07}, devicePlugin: {sharing: {mps: {replicas: 4}}}}}";
const OTHER_DRIVER: &str = "{defaults: {driver: {version: 590.10.01}, devicePlugin: {sharing: {mps: {replicas: 4}}}}}";

/// Returns a settled fleet of node a and, in another pool, node t.
fn fleet() -> Sim {
    let mut sim = Sim::new().policy("all", MPS).gpu_node("a", "2330", 8).gpu_node("t", "1eb8", 8);
    sim.settle();
    sim
}

fn idle(_: &mut Sim) {}

fn used(sim: &mut Sim) {
    busy(sim, "a");
}

fn with_a_pending_update(sim: &mut Sim) {
    busy(sim, "a");
    sim.apply_policy("all", OTHER_DRIVER);
    sim.run(20);
}

/// The operator has not seen the change of the policy when it sees that of the label.
fn with_a_changed_policy(sim: &mut Sim) {
    busy(sim, "a");
    sim.apply_policy("all", OTHER_DRIVER);
}

fn in_release(sim: &mut Sim) {
    // The probe does not confirm the release.
    sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
    sim.apply_policy("all", OTHER_DRIVER);
    step_until_released(sim, "a");
    sim.run(5);
}

fn in_install(sim: &mut Sim) {
    sim.faults.insert("a".into(), Faults { slow: 3600, ..Faults::default() });
    sim.apply_policy("all", OTHER_DRIVER);
    sim.run(60);
    assert_eq!(sim.spec("a").rollout.as_ref().map(|rollout| rollout.step), Some(RolloutStep::Replace));
}

fn without_a_current_report(sim: &mut Sim) {
    sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
    sim.reboot("a", 0);
    sim.run(20);
}

fn in_grace(sim: &mut Sim) {
    busy(sim, "a");
    sim.label("a", keys::MANAGED, Some("false"));
    sim.run(5);
}

fn leaving(sim: &mut Sim) {
    in_grace(sim);
    sim.sleep(60);
    sim.run(20);
}

fn leaving_in_an_update(sim: &mut Sim) {
    with_a_pending_update(sim);
    leaving(sim);
}

/// A name, and what brings a fleet into this state.
type State = (&'static str, fn(&mut Sim));

const STATES: [State; 10] = [
    ("idle", idle),
    ("busy", used),
    ("an update is pending", with_a_pending_update),
    ("the policy has changed", with_a_changed_policy),
    ("the update releases the driver", in_release),
    ("the update installs the driver", in_install),
    ("the last report is of an earlier boot", without_a_current_report),
    ("the node may return", in_grace),
    ("the node leaves", leaving),
    ("the node leaves during an update", leaving_in_an_update),
];

fn revisions(sim: &Sim, node: &NodeName) -> BTreeMap<&'static str, Interned> {
    let labels = &sim.nodes[node].labels;
    let named = Stage::ALL.into_iter().filter_map(|stage| Some((stage.key(), labels.get(stage.key())?.clone())));
    // A label that names nothing is removed in two writes.
    named.filter(|(_, revision)| !["", "none"].contains(&revision.as_str())).collect()
}

/// Returns the revisions of all nodes, and when their pods were created.
fn placed(sim: &Sim) -> impl PartialEq + std::fmt::Debug {
    let revisions: Vec<_> = sim.nodes.keys().map(|node| (node.clone(), revisions(sim, node))).collect();
    let pods = sim.pods.values().map(|pod: &PodFacts| (pod.name.clone(), pod.revision.clone(), pod.created));
    (revisions, pods.collect::<Vec<_>>())
}

#[test]
fn a_stray_value_is_replaced_at_once_by_the_recorded_group() {
    for (state, begin) in STATES {
        let mut before = fleet();
        begin(&mut before);
        let mut undisturbed = before.clone();
        undisturbed.step();
        for stage in Stage::ALL {
            let other = before.node("t").labels.get(stage.key()).map(ToString::to_string);
            for value in [Some("x"), Some(""), other.as_deref(), None] {
                let mut sim = before.clone();
                sim.label("a", stage.key(), value);
                let plan = sim.plan();
                let deleted: Vec<_> =
                    plan.deleted(Kind::Pod).into_iter().chain(plan.deleted(Kind::DaemonSet)).collect();
                assert!(deleted.is_empty(), "{state}: {stage:?} = {value:?}: {deleted:?}");
                sim.step_with(plan);
                assert_eq!(placed(&sim), placed(&undisturbed), "{state}: {stage:?} = {value:?}");
                sim.step();
                sim.step();
                assert!(sim.node("a").labels.values().all(|value| !value.is_empty()), "{:?}", sim.node("a").labels);
            }
        }
    }
}

#[test]
fn without_a_record_known_labels_and_running_pods_count() {
    for runs in [true, false] {
        let mut sim = fleet();
        busy(&mut sim, "a");
        let labels = revisions(&sim, &"a".into());
        sim.label("a", keys::DRIVER, Some("x"));
        sim.gpu_nodes.remove(&"a".into());
        sim.pods.retain(|name, _| runs || name != "driver@a");
        sim.step();
        let rest: BTreeMap<_, _> = labels.clone().into_iter().filter(|(key, _)| runs || *key != keys::DRIVER).collect();
        assert_eq!(revisions(&sim, &"a".into()), rest, "the driver's pod runs: {runs}");
        sim.settle();
        assert_eq!((revisions(&sim, &"a".into()), sim.spec("a").current.is_some()), (labels, true));
    }
}

#[test]
fn a_record_without_labels_replaces_no_driver_in_use() {
    let mut sim = Sim::new().policy("all", OTHER_DRIVER).gpu_node("a", "2330", 8);
    sim.faults.insert("a".into(), Faults { driver_crash: Some("no headers".into()), ..Faults::default() });
    sim.run(30);
    assert!(sim.status("a").reason().is_some_and(Reason::is_failure));
    // A node that failed gets the wanted driver at once, but its labels cannot be written.
    sim.apply_policy("all", MPS);
    sim.step();
    let failed = revisions(&sim, &"a".into());
    let mut plan = sim.plan();
    assert!(!plan.labels().is_empty());
    plan.writes.retain(|write| write.target.part != Part::Labels);
    sim.step_with(plan);
    sim.faults.clear();
    for _ in 0..5 {
        sim.surroundings();
    }
    assert_eq!(sim.node("a").allocatable.total(), 32, "the earlier driver works after all");
    busy(&mut sim, "a");
    sim.run(30);
    assert_eq!(revisions(&sim, &"a".into()), failed);
    sim.gpu_pods.clear();
    sim.settle();
    assert_eq!(sim.report("a").driver.loaded.as_deref(), Some("595.91.07"));
}

#[test]
fn the_driver_pod_of_a_stray_label_deletes_no_plugin() {
    let mut sim = fleet();
    busy(&mut sim, "a");
    let other = sim.node("t").labels[keys::DRIVER].to_string();
    sim.label("a", keys::DRIVER, Some(&other));
    // Its container waits for the driver in use, and that of the node's own driver still runs.
    sim.sleep(60);
    let (name, revision, created) = ("driver@other".into(), Some(other.into()), Some(sim.now.into()));
    let mut waits = PodFacts { name, revision, created, ..sim.pods["driver@a"].clone() };
    waits.containers[0].state = ContainerState::Waiting { reason: "PodInitializing".into(), message: String::new() };
    sim.pods.insert(waits.name.clone(), waits);
    assert!(sim.plan().deleted(Kind::Pod).is_empty(), "{:?}", sim.plan().deleted(Kind::Pod));
}
