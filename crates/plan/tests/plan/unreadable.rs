//! Objects that cannot be parsed: nothing becomes better because of them, and nothing is done to what they are about.

use gpu_operator_plan::output::body::Kind;
use std::collections::BTreeSet;
use test_support::planned::Planned;

use gpu_operator_crd::{NodeName, keys, policy_status::NodeCounts, reason::Reason};
use gpu_operator_plan::{
    Plan,
    world::{Concern, Role},
};
use proptest::{collection::vec, prelude::*};
use test_support::random::config;

use crate::updates::begins_an_update;
use crate::{
    properties::{
        after,
        counts::reports_ready,
        events::{beginning, event, nth},
    },
    sim::Sim,
};

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn what_cannot_be_read_never_makes_anything_better(
        beginning in beginning(),
        events in vec(event(), 0..15),
        index in 0..6_usize,
        is_policy in any::<bool>(),
    ) {
        let (mut sim, _) = after(&[&beginning, &events]);
        let Some(name) = nth(&sim, index) else { return Ok(()) };
        let Some(gpu_node) = sim.gpu_nodes.get(&name) else { return Ok(()) };
        let (policy, known) = (gpu_node.spec.policy.clone(), sim.plan());
        if is_policy {
            sim.unparsable_policies.extend(policy.clone());
        } else {
            sim.unparsable_gpu_nodes.insert(name.clone());
        }
        if is_policy && policy.is_none_or(|policy| !sim.policies.contains_key(&policy)) {
            return Ok(());
        }
        let plan = sim.plan();
        let touched = touched(&plan, &name);
        prop_assert!(touched.is_empty(), "{name} is touched: {touched:?}");
        nothing_more_goes(&known, &plan)?;
        for (policy, status) in plan.statuses.iter().filter(|_| !is_policy) {
            let before = &known.statuses[policy];
            let (is, was) = (&status.nodes, &before.nodes);
            prop_assert!(is.ready <= was.ready, "{policy}: {is:?}, with it {was:?}");
            prop_assert!(status.gpus.allocatable <= before.gpus.allocatable, "{policy}: {:?} {:?}", status.gpus, before.gpus);
            prop_assert!(!reports_ready(status) || reports_ready(before), "{policy}: {status:#?}");
        }
    }
}

/// Returns what a plan writes to a node and its GpuNode.
fn touched(plan: &Plan, node: &NodeName) -> Vec<String> {
    let writes = plan.clone().take_writes().concat();
    let concerned = writes.iter().filter(|write| write.concerns() == Concern::Node(node.clone()));
    concerned.map(ToString::to_string).collect()
}

/// Nothing is deleted that would not be if everything could be parsed, and no more updates begin.
fn nothing_more_goes(known: &Plan, plan: &Plan) -> Result<(), TestCaseError> {
    let writes = |plan: &Plan| plan.clone().take_writes().concat();
    let removed = |plan: &Plan| -> BTreeSet<String> {
        let takes = |write: &str| write.starts_with("delete ") || write.starts_with("remove ");
        writes(plan).iter().map(ToString::to_string).filter(|write| takes(write)).collect()
    };
    let (before, now) = (removed(known), removed(plan));
    let more: Vec<_> = now.difference(&before).collect();
    prop_assert!(more.is_empty(), "{more:?}");
    let begun = |plan: &Plan| writes(plan).iter().filter(|write| begins_an_update(write)).count();
    prop_assert!(begun(plan) <= begun(known).max(1), "more updates begin");
    Ok(())
}

#[test]
fn a_node_whose_gpu_node_cannot_be_parsed_counts_as_failed() {
    let mut sim = Sim::settled_fleet("{}", &["a", "b", "c"]);
    sim.unparsable_gpu_nodes.insert("b".into());
    sim.run(5);
    let status = sim.policy_status("all");
    assert_eq!(status.nodes, NodeCounts { total: 3, ready: 2, failed: 1, ..NodeCounts::default() });
    assert_eq!((status.gpus.expected, status.gpus.allocatable, status.gpus.unknown), (24, 16, 8));
    assert_eq!(sim.condition("all", "Ready").0, "False");
    let attention = &status.attention[0];
    assert_eq!((attention.node.as_str(), attention.reason()), ("b", Some(Reason::GpuNodeUnreadable)));
    assert!(attention.message.contains("kubectl delete gpunode b"), "{}", attention.message);
    // One that has no labels yet counts as well.
    sim.join("d", "2330", 8);
    sim.unparsable_gpu_nodes.insert("d".into());
    sim.run(5);
    let counted = sim.policy_status("all").nodes;
    assert_eq!(counted, NodeCounts { total: 4, ready: 2, failed: 2, ..NodeCounts::default() });
    sim.unparsable_gpu_nodes.clear();
    sim.settle();
    assert_eq!(sim.condition("all", "Ready").0, "True");
}

#[test]
fn nothing_that_an_unparsed_gpu_node_may_need_goes() {
    let mut sim = Sim::settled_fleet("{deletionPolicy: Now}", &["a"]);
    let sets: Vec<_> = sim.sets.keys().cloned().collect();
    sim.unparsable_gpu_nodes.insert("a".into());
    // Only its record names the driver now.
    sim.label("a", keys::DRIVER, None);
    sim.delete_policy("all");
    sim.run(300);
    assert!(sim.sets.keys().eq(&sets) && sim.policies.contains_key(&"all".into()), "{:?}", sim.sets.keys());
    assert_eq!(sim.policy_status("all").attention[0].reason(), Some(Reason::GpuNodeUnreadable));
    sim.unparsable_gpu_nodes.clear();
    sim.run(300);
    assert!(sim.sets.is_empty() && sim.policies.is_empty());
}

#[test]
fn the_daemon_sets_of_a_policy_that_cannot_be_parsed_stay() {
    let mut sim = Sim::new().policy("all", "{}").gpu_node("a", "2330", 8);
    // They exist, and no label names them yet.
    sim.carry_out_first(&sim.plan(), 2);
    let sets = sim.sets.len();
    assert!(sets > 0 && !sim.node("a").labels.contains_key(keys::DRIVER));
    sim.unparsable_policies.insert("all".into());
    sim.run(30);
    assert_eq!(sim.sets.len(), sets);
}

#[test]
fn a_test_stays_while_its_policy_cannot_be_parsed() {
    let mut sim = Sim::new().policy("all", "{readiness: {validation: {mode: OnInstall}}}").gpu_node("a", "2330", 8);
    while !sim.pods.values().any(|pod| pod.role == Role::Validation) {
        sim.step();
        sim.sleep(1);
    }
    sim.unparsable_policies.insert("all".into());
    sim.gpu_nodes.remove(&"a".into());
    assert_eq!(sim.plan().deleted(Kind::Pod), BTreeSet::new());
}
