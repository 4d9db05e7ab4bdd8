//! The plan of an operator that is being uninstalled while policies stay: what only an operator can undo goes, and what works without one
//! is left unchanged. No update goes on. A node that has not reached step Replace gets back what it had; the labels of others name their
//! new
//! revision already, and its pods need no operator. Another operator continues from there.

use std::{collections::BTreeMap, sync::Arc};

use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, GpuNodeSpec, NodeName,
    gpunode::{Rollout, RolloutStep},
    keys,
    policy_status::{PoolStatus, RolloutStatus, Summary},
};

use crate::{
    clock::Clock,
    inventory::{membership::name_of, records},
    output::{
        body::Body,
        gpu_node,
        headline::{self, Headline},
        node_conditions, node_labels, node_taints, policy_conditions,
        policy_nodes::{ledger_write, without_ledger},
        write::{Plan, Write},
    },
    revision,
    rollout::ledger::Ledger,
    world::{NodeFacts, PodFacts, World},
};

pub fn plan(world: &World, clock: &Clock) -> Plan {
    let world = &*records::with_confirmed_taints(world);
    let mut plan = Plan::default();
    let mut unused: BTreeMap<NodeName, u32> = BTreeMap::new();
    for policy in world.policies.values() {
        let ledger = Ledger::of(policy, world, clock);
        for slot in ledger.unused_slots(world) {
            let update = unused.entry(slot.node.clone()).or_default();
            *update = (*update).max(slot.update);
        }
        plan.writes.extend(ledger.changed().map(|content| ledger_write(policy, &content)));
        let status = status(policy, clock);
        if policy.status.as_ref().map(without_ledger).as_ref() != Some(&status) {
            plan.writes.push(Write::new(name_of(policy), Body::PolicyStatus(Box::new(status.clone()))));
        }
        plan.statuses.insert(name_of(policy), status);
    }
    for (name, node) in &world.nodes {
        let pods: Vec<_> = world.pods.on(name).map(Arc::as_ref).collect();
        let updates_begun = unused.get(name).copied().unwrap_or_default();
        plan.writes.extend(writes_of_node(world, node, &pods, updates_begun));
    }
    plan.sort();
    plan
}

/// Returns the writes for a node, whose slot for the update of this number is given up.
fn writes_of_node(world: &World, node: &NodeFacts, pods: &[&PodFacts], updates_begun: u32) -> Vec<Write> {
    let mut writes = Vec::new();
    let gpu_node = records::gpu_node_of(world, node);
    let is_ahead = |rollout: &&Rollout| rollout.step != RolloutStep::Replace;
    let given_back = gpu_node.and_then(|gpu_node| gpu_node.spec.rollout.as_ref().filter(is_ahead));
    let recorded = gpu_node.filter(|gpu_node| gpu_node.spec.current.is_some());
    let revisions = match given_back {
        Some(rollout) => Some(rollout.from.clone()),
        None => recorded.map(|gpu_node| records::current_revisions(&world.daemon_sets, node, Some(gpu_node), pods)),
    };
    if let Some(gpu_node) = gpu_node {
        let before = &gpu_node.spec;
        let spec = GpuNodeSpec {
            current: revisions.clone(),
            rollout: None,
            updates_begun: before.updates_begun.max(updates_begun),
            // Where a driver is being replaced, the probe must not use the one before again until it ends.
            release_driver: before.release_driver && given_back.is_none(),
            report_holders: before.report_holders && given_back.is_none(),
            ..before.clone()
        };
        let write = (spec != *before).then(|| gpu_node::spec_write(Some(gpu_node), node, spec)).flatten();
        writes.extend(write.map(|spec| Write::new(&node.name, Body::Spec(Box::new(spec)))));
    }
    let is_paused = node.owned_labels.contains(keys::CLIENTS);
    let labelled = revisions.or_else(|| is_paused.then(|| revision::labelled_revisions(node)));
    let labels = labelled.and_then(|revisions| node_labels::restored(node, &revisions).write);
    writes.extend(labels.map(|labels| Write::new(&node.name, Body::Labels(labels))));
    writes.extend(node_taints::cordon(node, false));
    writes.extend(node_conditions::removal(node));
    writes.extend(node_taints::removal(node));
    writes
}

/// Returns a policy's status, in which counts stay as the operator has last seen them.
fn status(policy: &ClusterGpuPolicy, clock: &Clock) -> ClusterGpuPolicyStatus {
    let before = policy.status.as_ref().map(without_ledger).unwrap_or_default();
    let conditions = policy_conditions::uninstalled(policy, clock);
    let Headline { status, condition } = headline::of(&conditions);
    let (reason, message) = condition.map(|shown| (shown.reason.clone(), shown.message.clone())).unwrap_or_default();
    let pools = before.pools.into_iter().map(|pool| PoolStatus { reason: None, message: String::new(), ..pool });
    ClusterGpuPolicyStatus {
        observed_generation: policy.metadata.generation,
        summary: Summary { status: status.to_owned(), reason, message, ..before.summary },
        pools: pools.collect(),
        rollout: RolloutStatus::default(),
        attention: Vec::new(),
        conditions,
        ..before
    }
}
