//! CRDs of another version than the operator's: nothing is removed, no update begins, and everything else goes on.

use gpu_operator_crd::{
    Phase, SchemaMismatch, health::HealthState, keys, policy::Stage, reason::Reason, schema_revision::SCHEMA_REVISION,
};
use gpu_operator_plan::world::OtherSchema;
use proptest::{collection::vec, prelude::*};
use test_support::random::config;

use crate::{
    health::set_health,
    properties::{
        after,
        events::{apply_event, beginning, event},
        settle,
    },
    robust::{NEW, OLD},
    sim::Sim,
};

/// Lets the CRD of policies have this revision from now on.
pub fn set_revision(sim: &mut Sim, revision: Option<u32>) {
    let mismatch = SchemaMismatch { crd: "clustergpupolicies.gpu.nodestack.dev".to_owned(), revision };
    sim.other_schema = Some(OtherSchema { mismatch, since: sim.now });
}

/// Returns the message of the condition.
fn degraded(sim: &Sim) -> String {
    let conditions = sim.policy_status("all").conditions;
    let found = conditions.into_iter().find(|condition| condition.type_ == "Degraded");
    found.expect("a condition").message
}

proptest! {
    #![proptest_config(config(48))]

    // `law::holds` checks each write.
    #[test]
    fn with_other_crds_nothing_goes_and_no_turn_begins(
        beginning in beginning(),
        events in vec(event(), 0..12),
        meanwhile in vec(event(), 1..12),
        is_newer in any::<bool>(),
    ) {
        let (mut sim, mut oracle) = after(&[&beginning, &events]);
        set_revision(&mut sim, is_newer.then_some(SCHEMA_REVISION + 1));
        for event in &meanwhile {
            apply_event(&mut sim, &mut oracle, event);
        }
        sim.other_schema = None;
        settle(&mut sim, &mut oracle);
    }
}

#[test]
fn an_update_begins_once_the_crds_are_of_the_same_version() {
    for (revision, reason) in [(None, Reason::CrdsOutdated), (Some(SCHEMA_REVISION + 1), Reason::CrdsNewer)] {
        let mut sim = Sim::settled_fleet(OLD, &["a", "b"]);
        set_revision(&mut sim, revision);
        sim.steps(10);
        assert_eq!(sim.condition("all", "Degraded").0, "False", "CRDs and operator differ during each upgrade");
        sim.apply_policy("all", NEW);
        sim.join("c", "2330", 8);
        sim.steps(300);
        assert!(["a", "b"].iter().all(|node| !sim.is_moving(*node)));
        assert!(
            sim.status("a").message.contains("of another version than the operator"),
            "{}",
            sim.status("a").message
        );
        // A node without a stack gets one.
        assert!(sim.status("c").is_ready(), "{:?}", sim.status("c"));
        assert_eq!(sim.condition("all", "Degraded"), ("True".to_owned(), reason.as_str().to_owned()));
        let message = degraded(&sim);
        assert!(message.contains("kubectl apply --server-side -f config/crd"), "{message}");
        assert_eq!(sim.condition("all", "Ready").0, "True");
        assert!(sim.plan().is_empty(), "settled: {:#?}", sim.plan());
        sim.other_schema = None;
        sim.steps(600);
        assert!(["a", "b"].iter().all(|node| sim.status(*node).is_ready()));
        assert_eq!(sim.sets_of(Stage::Driver).len(), 1, "all nodes have the new driver");
        assert_eq!(sim.condition("all", "Degraded").0, "False");
    }
}

#[test]
fn an_update_that_has_begun_ends() {
    let mut sim = Sim::settled_fleet(OLD, &["a", "b"]).policy("all", NEW);
    while !sim.is_moving("a") && !sim.is_moving("b") {
        sim.steps(1);
    }
    set_revision(&mut sim, None);
    sim.steps(300);
    assert!(["a", "b"].iter().all(|node| !sim.is_moving(*node) && sim.status(*node).is_ready()));
    let waiting = ["a", "b"].iter().filter(|node| sim.status(**node).reason() == Some(Reason::RolloutPending)).count();
    assert_eq!(waiting, 1, "the update of the other one does not begin");
}

#[test]
fn what_nothing_needs_stays_until_the_crds_are_replaced() {
    let spec = "{defaults: {toolkit: {injection: Runtime}}, deletionPolicy: Now}";
    let mut sim = Sim::settled_fleet(spec, &["a"]);
    let (sets, classes) = (sim.sets.len(), sim.runtime_classes.len());
    assert!(sets > 2 && classes > 0, "{sets} {classes}");
    set_revision(&mut sim, None);
    sim.delete_policy("all");
    sim.steps(300);
    // It is the user's wish that the stack leaves the node.
    assert!(!sim.node("a").labels.contains_key(keys::DRIVER));
    assert_eq!((sim.sets.len(), sim.runtime_classes.len()), (sets, classes));
    assert!(sim.policies.contains_key(&"all".into()), "its DaemonSets exist");
    sim.other_schema = None;
    sim.steps(300);
    assert!(sim.sets.is_empty() && sim.runtime_classes.is_empty() && sim.policies.is_empty());
}

#[test]
fn a_gpu_node_without_a_node_stays_until_the_crds_are_replaced() {
    let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
    sim.leave_with_a_running_probe(&"b".into());
    set_revision(&mut sim, Some(SCHEMA_REVISION + 1));
    sim.steps(200);
    assert!(sim.gpu_nodes.contains_key(&"b".into()));
    sim.other_schema = None;
    sim.steps(100);
    assert!(!sim.gpu_nodes.contains_key(&"b".into()));
}

#[test]
fn a_node_that_its_policy_seems_not_to_select_keeps_its_stack() {
    let mut sim = Sim::new().policy("all", "{nodeSelector: {matchLabels: {gpu: yes}}}").gpu_node("a", "2330", 8);
    sim.label("a", "gpu", Some("yes"));
    sim.settle();
    let labels = sim.node("a").labels.clone();
    set_revision(&mut sim, Some(SCHEMA_REVISION + 1));
    // As if a field that this version does not know selected it.
    sim.apply_policy("all", "{nodeSelector: {matchLabels: {gpu: maybe}}, deletionPolicy: Now}");
    sim.steps(300);
    assert_eq!(sim.node("a").labels, labels);
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::Unmanaged, Some(Reason::Leaving)));
    assert!(status.message.contains("while a CRD is of another version"), "{}", status.message);
    sim.other_schema = None;
    sim.steps(100);
    assert!(!sim.node("a").labels.contains_key(keys::DRIVER));
}

#[test]
fn unhealthy_gpus_are_reported_beside_other_crds() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    set_health(&mut sim, 3, HealthState::Unhealthy);
    set_revision(&mut sim, None);
    sim.steps(60);
    assert_eq!(sim.condition("all", "Degraded").1, Reason::GpuUnhealthy.as_str());
    let message = degraded(&sim);
    assert!(message.starts_with("1 GPU is unhealthy") && message.contains("; CRD clustergpupolicies."), "{message}");
}
