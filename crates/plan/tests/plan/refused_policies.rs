//! Policies that are only invalid for a given fleet: the operator reports the message in `rejected.yaml` of test-support, and running
//! workloads and operands are not disturbed.

use std::collections::BTreeMap;

use crate::sim::Sim;
use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{ConditionType, NodeName, keys, policy::Stage, policy_status::PoolStatus, reason::Reason};
use gpu_operator_plan::world::NodeFacts;
use test_support::rejected::{REJECTED, Report};

/// Returns the fleet on which they are reported.
fn fleet() -> Sim {
    let mut sim = Sim::new()
        .gpu_node("k80", "102d", 4)
        .gpu_node("v100", "1db1", 8)
        .gpu_node("b200", "2901", 8)
        .gpu_node("h100", "2330", 8)
        .gpu_node("l4", "27b8", 1)
        .policy("fleet", "{}");
    sim.report("l4").os.version_id = "24.04".into();
    sim.node_mut("h100").labels.insert("tier".into(), "gold".into());
    sim.settle();
    assert_eq!(sim.condition("fleet", "Ready").1, Reason::AllGpusAllocatable.as_str());
    sim
}

fn pool(sim: &Sim, name: &str) -> PoolStatus {
    let pools = sim.policy_status("fleet").pools;
    pools.into_iter().find(|pool| pool.name == name).unwrap_or_else(|| panic!("no pool {name}"))
}

/// Returns the reason and message in the status of the policy or the node to which a row refers.
fn reported(sim: &Sim, row: &Report) -> (String, String) {
    let word = |reason: Option<Reason>| reason.map(Reason::as_str).unwrap_or_default().to_owned();
    match (row.pool.as_deref(), row.node.as_deref()) {
        (Some(name), None) => (word(pool(sim, name).reason()), pool(sim, name).message),
        (None, Some(name)) => (word(sim.status(name).reason()), sim.status(name).message),
        (None, None) => {
            let conditions = sim.policy_status("second").conditions;
            let ready = conditions.into_iter().find(|condition| condition.type_ == ConditionType::Ready.as_str());
            ready.map(|ready| (ready.reason, ready.message)).expect("a condition")
        }
        (Some(pool), Some(node)) => panic!("pool {pool} and node {node}"),
    }
}

/// Returns the operand labels and the readiness of all nodes, except those in valid named pools, which the policy may
/// change.
fn running(sim: &Sim) -> BTreeMap<NodeName, ([Option<Interned>; 4], bool)> {
    let named = &sim.policies[&"fleet".into()].spec.pools;
    let is_valid = |node: &&NodeFacts| {
        let pool = &*node.labels[keys::POOL];
        // What its operands are is valid, whatever else of the pool is not.
        let has_valid_operands = |reason: Option<Reason>| reason.is_none_or(|reason| reason == Reason::InvalidPolicy);
        named.iter().any(|named| named.name == *pool) && has_valid_operands(self::pool(sim, pool).reason())
    };
    let of = |node: &NodeFacts| {
        let labels = Stage::ALL.map(|stage| node.labels.get(stage.key()).cloned());
        (node.name.clone(), (labels, sim.status(&node.name).is_ready()))
    };
    sim.nodes.values().filter(|node| !is_valid(node)).map(of).collect()
}

#[test]
fn specs_invalid_for_the_fleet_are_reported_and_disrupt_nothing() {
    for row in &REJECTED.reported {
        let mut sim = fleet();
        let (before, sets) = (running(&sim), sim.sets.clone());
        let written = &row.written;
        let policy = if row.is_of_second_policy() { "second" } else { "fleet" };
        sim.apply_policy(policy, written);
        sim.settle();
        assert_eq!(reported(&sim, row), (row.reason.clone(), row.message.clone()), "{written}");
        for (node, now) in running(&sim) {
            assert_eq!(now, before[&node], "{written}: {node}");
            for (stage, revision) in Stage::ALL.map(|stage| (stage, sim.nodes[&node].labels.get(stage.key()))) {
                let Some(revision) = revision else { continue };
                let set = format!("{}-{revision}", stage.as_str());
                assert_eq!(sim.sets[&set], sets[&set], "{written}: {node}");
            }
        }
        let marks_pool = row.pool.is_some();
        assert_eq!(sim.condition("fleet", "Accepted").0, if marks_pool { "False" } else { "True" }, "{written}");
    }
}

#[test]
fn the_documented_fix_resolves_the_report() {
    for row in &REJECTED.reported {
        let Some(spec) = &row.write else { continue };
        let mut sim = fleet();
        sim.apply_policy("fleet", &row.written);
        sim.settle();
        sim.apply_policy("fleet", spec);
        sim.settle();
        assert_eq!(sim.condition("fleet", "Accepted").0, "True", "{spec}");
        assert_eq!(sim.condition("fleet", "Ready").1, Reason::AllGpusAllocatable.as_str(), "{spec}");
        assert_eq!(sim.condition("fleet", "Stalled").0, "False", "{spec}");
    }
}

#[test]
fn a_pool_is_shadowed_if_earlier_pools_match_all_of_its_nodes() {
    for (pools, shadowed) in [
        ("[{name: a}, {name: b}]", true),
        ("[{name: a, match: {nodeSelector: {}}}, {name: b, match: {models: [t4]}}]", true),
        ("[{name: a, match: {models: [nvidia-tesla-t4]}}, {name: b, match: {models: [t4]}}]", true),
        (
            "[{name: a, match: {models: [t4]}}, {name: c, match: {models: [l4]}}, {name: b, match: {models: [l4, t4]}}]",
            true,
        ),
        (
            "[{name: a, match: {nodeSelector: {matchLabels: {zone: a}}}}, {name: b, match: {models: [t4], nodeSelector: {matchLabels: {zone: a, room: lab}}}}]",
            true,
        ),
        ("[{name: a, match: {models: [t4]}}, {name: b}]", false),
        ("[{name: a, match: {models: [t4]}}, {name: b, match: {models: [l4, t4]}}]", false),
        ("[{name: a, match: {nodeSelector: {matchLabels: {zone: a}}}}, {name: b, match: {models: [t4]}}]", false),
        (
            "[{name: a, match: {nodeSelector: {matchLabels: {zone: a}}}}, {name: b, match: {nodeSelector: {matchLabels: {zone: b}}}}]",
            false,
        ),
        ("[{name: b, match: {models: [t4]}}, {name: a}]", false),
    ] {
        let mut sim = Sim::new().policy("fleet", &format!("{{pools: {pools}}}"));
        sim.settle();
        let expected = shadowed.then_some(Reason::PoolShadowed);
        assert_eq!(pool(&sim, "b").reason(), expected, "{pools}: {}", pool(&sim, "b").message);
    }
}
