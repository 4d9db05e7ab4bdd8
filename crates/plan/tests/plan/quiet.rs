//! An uninstallation that keeps the policies: what only an operator can undo goes, everything else stays, and another operator continues.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    NodeName, Phase,
    gpunode::{RolloutStep, StageRevisions},
    health::HealthState,
    keys,
    policy::Stage,
    reason::Reason,
};
use gpu_operator_plan::{
    output::{body::Body, headline},
    revision,
    world::{Role, TaintFact},
};
use proptest::{collection::vec, prelude::*};
use test_support::random::config;

use crate::{
    health::set_health,
    properties::{
        after,
        events::{beginning, event},
        settle,
    },
    robust::{NEW, OLD, busy, loaded, step_until_released, updating_fleet},
    sim::Sim,
};

/// The most passes that a fleet needs to become quiet: slots are freed once they are spent.
const PASSES: usize = 3;

/// Makes the passes of the hook, and returns what they have written. They end by themselves.
fn quiet(sim: &mut Sim) -> Vec<String> {
    sim.settings.quiets = true;
    let mut written = Vec::new();
    for _ in 0..PASSES {
        let plan = sim.plan();
        written.extend(plan.writes.iter().map(ToString::to_string));
        assert!(plan.questions.gpu_pods.is_empty() && plan.questions.log_tails.is_empty());
        for write in &plan.writes {
            assert!(may_be_written(&write.body), "{write}");
        }
        sim.carry_out(&plan);
    }
    assert!(sim.plan().is_empty(), "{:#?}", sim.plan());
    only_lasting_things_remain(sim);
    written
}

/// Returns whether a quiet operator may make this write at all.
fn may_be_written(body: &Body) -> bool {
    match body {
        Body::Spec(write) => write.spec.rollout.is_none(),
        Body::Labels(write) => !write.labels.contains_key(keys::CLIENTS),
        Body::Conditions(conditions) => conditions.is_empty(),
        Body::Taints(taints) => taints.lifted.is_none() && taints.own.as_ref().is_some_and(|own| own.wanted.is_none()),
        Body::Cordon(is_wanted) => !is_wanted,
        Body::Ledger(ledger) => ledger.slots.is_empty(),
        Body::PolicyStatus(_) => true,
        _ => false,
    }
}

fn only_lasting_things_remain(sim: &Sim) {
    for (name, node) in &sim.nodes {
        assert!(!node.own_cordon && !node.labels.contains_key(keys::CLIENTS), "{name}");
        assert!(node.own_conditions.is_empty() && node.own_taint.is_none(), "{name}");
    }
    for gpu_node in sim.gpu_nodes.values() {
        assert_eq!(gpu_node.spec.rollout, None);
    }
    for (name, policy) in &sim.policies {
        let status = policy.status.as_ref().expect("a status");
        let is_unknown = |kind: &str| status.conditions.iter().any(|it| it.type_ == kind && it.status == "Unknown");
        assert!(["Ready", "Reconciling", "Stalled", "Degraded", "Accepted"].into_iter().all(is_unknown), "{name}");
        let reason = Reason::OperatorUninstalled.as_str();
        assert_eq!((status.summary.status.as_str(), status.summary.reason.as_str()), ("Unknown", reason));
        assert!(status.summary.message.contains("install the chart again") && status.attention.is_empty());
        assert!(status.pools.iter().all(|pool| pool.reason.is_none() && pool.message.is_empty()));
        assert!(status.rollout.slots.is_empty(), "{name}");
    }
}

/// Returns the operands' pods, with the times of their creation.
fn pods(sim: &Sim) -> BTreeMap<String, String> {
    let operands = sim.pods.values().filter(|pod| matches!(pod.role, Role::Operand(_)));
    operands.map(|pod| (pod.name.clone(), format!("{:?}", pod.created))).collect()
}

/// Runs until the update of a node has reached this step.
fn step_until(sim: &mut Sim, node: &str, step: RolloutStep) {
    for _ in 0..200 {
        if sim.spec(node).rollout.as_ref().is_some_and(|rollout| rollout.step == step) {
            return;
        }
        sim.steps(1);
    }
    panic!("the update of node {node} has not reached {step:?}");
}

/// Ends the hook: another operator is installed.
fn adopt(sim: &mut Sim) {
    sim.settings.quiets = false;
    sim.steps(400);
}

#[test]
fn a_settled_fleet_gets_one_write_and_is_adopted_unchanged() {
    let mut sim = Sim::settled_fleet("{nodeLabels: [{key: accelerator}]}", &["a", "b"]);
    sim.node_mut("b").cordoned = true;
    sim.settle();
    let (pods_before, sets, labels) = (pods(&sim), sim.sets.clone(), sim.node("a").labels.clone());
    let counts = sim.policy_status("all").nodes;
    assert_eq!(quiet(&mut sim), ["apply the status of policy all"]);
    assert!(sim.node("b").cordoned, "others have cordoned it");
    assert_eq!((&sim.policy_status("all").nodes, &sim.node("a").labels), (&counts, &labels));
    adopt(&mut sim);
    assert_eq!((pods(&sim), sim.sets.clone()), (pods_before, sets));
    assert_eq!(sim.condition("all", "Ready").0, "True");
    assert_eq!(headline::of(&sim.policy_status("all").conditions).status, "Ready");
}

#[test]
fn a_node_that_releases_its_driver_gets_its_plugin_back() {
    let mut sim = updating_fleet(&["a", "b"], "{}");
    step_until_released(&mut sim, "a");
    // The plugin's label names a pod that waits for the new driver already, and others are paused.
    let had = sim.spec("a").rollout.clone().expect("an update").from;
    assert_ne!(revision::labelled_revisions(sim.node("a")), had);
    assert!(sim.node("a").labels.contains_key(keys::CLIENTS) && sim.spec("a").release_driver);
    quiet(&mut sim);
    assert_eq!(revision::labelled_revisions(sim.node("a")), had);
    assert!(!sim.spec("a").release_driver && !sim.spec("a").report_holders);
    for _ in 0..60 {
        sim.surroundings();
        sim.sleep(1);
    }
    assert_eq!((sim.node("a").allocatable.total(), loaded(&mut sim, "a")), (8, "595.91.07".to_owned()));
    adopt(&mut sim);
    assert_eq!(["a", "b"].map(|node| loaded(&mut sim, node)), ["590.10.01", "590.10.01"]);
}

#[test]
fn labels_to_give_back_are_written_after_an_interruption() {
    let mut sim = updating_fleet(&["a"], "{}");
    step_until_released(&mut sim, "a");
    let had = sim.spec("a").rollout.clone().expect("an update").from;
    sim.settings.quiets = true;
    // The hook is killed between the record and the labels.
    let plan = sim.plan();
    let record = plan.writes.iter().find(|write| matches!(write.body, Body::Spec(_))).expect("a record");
    sim.write(record).expect("an accepted write");
    assert_ne!(revision::labelled_revisions(sim.node("a")), had);
    quiet(&mut sim);
    assert_eq!(revision::labelled_revisions(sim.node("a")), had);
}

#[test]
fn a_driver_in_replacement_is_replaced_without_an_operator() {
    let mut sim = updating_fleet(&["a", "b"], "{}");
    step_until(&mut sim, "a", RolloutStep::Replace);
    assert_eq!(sim.node("a").allocatable.total(), 0);
    let new = revision::labelled_revisions(sim.node("a"));
    quiet(&mut sim);
    assert_eq!(revision::labelled_revisions(sim.node("a")), new);
    for _ in 0..120 {
        sim.surroundings();
        sim.sleep(1);
    }
    assert_eq!((sim.node("a").allocatable.total(), loaded(&mut sim, "a")), (8, "590.10.01".to_owned()));
    assert_eq!(loaded(&mut sim, "b"), "595.91.07", "no other update begins");
    adopt(&mut sim);
    assert_eq!((sim.status("a").phase, loaded(&mut sim, "b")), (Phase::Ready, "590.10.01".to_owned()));
}

#[test]
fn a_slot_that_is_not_used_yet_is_given_up() {
    let mut sim = updating_fleet(&["a", "b"], "{}");
    // The operator is killed between the ledger and the record.
    let slots = |sim: &Sim| sim.policy_status("all").rollout.slots;
    for _ in 0..200 {
        let mut plan = sim.plan();
        let begins = |body: &Body| matches!(body, Body::Spec(write) if write.spec.rollout.is_some());
        if plan.writes.iter().any(|write| begins(&write.body)) {
            plan.writes.retain(|write| matches!(write.body, Body::Ledger(_)));
            sim.carry_out(&plan);
            break;
        }
        sim.step_with(plan);
        sim.sleep(1);
    }
    let [slot] = slots(&sim).try_into().expect("one slot");
    assert!(sim.spec(slot.node.clone()).updates_begun < slot.update);
    quiet(&mut sim);
    assert_eq!((slots(&sim).len(), sim.spec(slot.node).updates_begun), (0, slot.update));
}

#[test]
fn a_slot_of_an_unknown_node_is_asked_for_again() {
    let mut sim = updating_fleet(&["a", "b"], "{}");
    let slots = |sim: &Sim| sim.policy_status("all").rollout.slots;
    for _ in 0..200 {
        if !slots(&sim).is_empty() {
            break;
        }
        sim.step();
        sim.sleep(1);
    }
    let [slot] = slots(&sim).try_into().expect("one slot");
    sim.gpu_nodes.remove(&slot.node);
    sim.settings.quiets = true;
    assert!(sim.plan().check_again.is_some(), "the watch of GpuNodes may be behind");
}

#[test]
fn taints_and_conditions_go_except_those_of_others() {
    let spec =
        "{health: {minHealthyGPUs: 1, onUnhealthy: {taint: {key: example.com/bad}}}, readiness: {nodeCondition: true}}";
    let mut sim = Sim::settled_fleet(spec, &["a", "b"]);
    let others = TaintFact { key: "example.com/team".into(), value: "ml".into(), effect: "NoExecute".into() };
    sim.node_mut("a").taints.push(others.clone());
    set_health(&mut sim, 0, HealthState::Unhealthy);
    sim.settle();
    let node = sim.node("a");
    assert!(node.own_taint.is_some() && node.taints.len() == 2 && node.own_conditions.len() == 2, "{node:?}");
    quiet(&mut sim);
    assert_eq!(sim.node("a").taints, [others]);
    adopt(&mut sim);
    assert!(sim.node("a").own_taint.is_some() && sim.node("a").own_conditions.len() == 2);
}

#[test]
fn a_node_with_an_unreadable_gpu_node_is_only_uncordoned() {
    let mut sim = updating_fleet(&["a"], "{gpuPods: {mode: Await}}");
    busy(&mut sim, "a");
    step_until(&mut sim, "a", RolloutStep::Await);
    sim.steps(5);
    sim.unparsable_gpu_nodes.insert("a".into());
    sim.settings.quiets = true;
    let plan = sim.plan();
    let writes: Vec<_> = plan.writes.iter().map(ToString::to_string).collect();
    assert_eq!(writes, ["apply the status of policy all", "apply this operator's cordon of node a"]);
}

#[test]
fn the_writes_are_these() {
    let mut sim = updating_fleet(&["a", "b"], "{gpuPods: {mode: Await}}");
    busy(&mut sim, "a");
    busy(&mut sim, "b");
    step_until(&mut sim, "a", RolloutStep::Await);
    sim.steps(5);
    set_health(&mut sim, 0, HealthState::Degraded);
    sim.steps(5);
    sim.settings.quiets = true;
    insta::assert_yaml_snapshot!("quiet", sim.plan().writes);
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn any_fleet_becomes_quiet_and_is_adopted(
        beginning in beginning(),
        events in vec(event(), 1..20),
    ) {
        let (mut sim, mut oracle) = after(&[&beginning, &events]);
        let own: BTreeMap<NodeName, StageRevisions> =
            sim.nodes.iter().map(|(name, node)| (name.clone(), revision::labelled_revisions(node))).collect();
        let (sets, pods) = (sim.sets.clone(), pods(&sim));
        quiet(&mut sim);
        prop_assert_eq!((&sim.sets, self::pods(&sim)), (&sets, pods));
        for (name, node) in &sim.nodes {
            let now = revision::labelled_revisions(node);
            // What is given back is more than what an interrupted update has left.
            for stage in Stage::ALL.into_iter().filter(|stage| own[name].get(*stage).is_some()) {
                prop_assert!(now.get(stage).is_some(), "{}", name);
            }
        }
        sim.settings.quiets = false;
        settle(&mut sim, &mut oracle);
    }
}

#[test]
fn a_rollout_between_two_nodes_stops_and_goes_on_after_it() {
    let mut sim = updating_fleet(&["a", "b"], "{canary: {nodes: 1, soak: 10m}}");
    sim.steps(120);
    let done: Vec<_> = ["a", "b"].into_iter().filter(|node| loaded(&mut sim, node) == "590.10.01").collect();
    assert_eq!(done.len(), 1, "the other one soaks");
    quiet(&mut sim);
    sim.sleep(3600);
    adopt(&mut sim);
    assert_eq!(["a", "b"].map(|node| loaded(&mut sim, node)), ["590.10.01", "590.10.01"]);
}

#[test]
fn a_stalled_policy_is_not_stalled_without_an_operator() {
    let mut sim = Sim::settled_fleet(OLD, &["a", "b"]);
    sim.apply_policy("all", "{pools: [{name: p, driver: {version: 470.256.02}}]}");
    sim.steps(30);
    assert_eq!(
        (sim.condition("all", "Accepted").0, sim.condition("all", "Stalled").0),
        ("False".into(), "True".into())
    );
    quiet(&mut sim);
    sim.apply_policy("all", NEW);
    adopt(&mut sim);
    assert_eq!(sim.condition("all", "Accepted").0, "True");
}
