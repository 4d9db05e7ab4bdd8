//! Which nodes are settled: nothing is written or asked for them, and the steps that consider the whole fleet find nothing of interest there.
//! Each condition that these steps ask for is asked for by the node's own clock here, which knows when one of them changes.

use std::sync::Arc;

use gpu_operator_crd::{GpuNode, Phase, gpunode::StageRevisions, policy::Stage};

use super::node_taints;
use crate::{
    assess::{Assessment, member::Member, mig, most_seen},
    clock::Clock,
    inventory::{KnownNode, UnmanagedNode, membership::name_of, records::belongs_to},
    revision::labelled_revisions,
    rollout::{
        change::driver_awaits_users,
        decision::Decision,
        recreate_pods::{is_to_be_recreated, pods_to_recreate},
        terms,
        toolkit_restart::{is_entering, is_on_its_way},
        update::settle,
    },
    summary::{NodeSummary, Settled, SettledMember, UnmanagedSummary},
    world::DaemonSets,
};

/// For a node for which nothing is written.
pub fn of_member(
    assessed: &Assessment<'_>,
    decision: &Decision,
    summary: &Arc<NodeSummary>,
    sets: &DaemonSets,
) -> Option<Settled> {
    let member = &assessed.member;
    let is_settled = has_answered_everything(assessed)
        && has_target(member)
        && *decision == rest(member)
        && has_own_facts(member)
        && is_of_no_interest(member, sets);
    let settled = || SettledMember {
        policy: name_of(member.policy),
        others: member.others.clone(),
        most_gpus: most_seen(member),
        is_unavailable: terms::is_unavailable(member),
        variant: member.target.variant().cloned(),
        summary: Arc::clone(summary),
        until: member.clock.next(),
    };
    (is_settled && !member.clock.asks_again()).then(|| Settled::Member(Arc::new(settled())))
}

/// For a node for which nothing is written, and on which nothing of this operator is left.
pub fn of_unmanaged(unmanaged: &UnmanagedNode<'_>, sets: &DaemonSets, clock: &Clock) -> Option<Settled> {
    let KnownNode { node, gpu_node, ref pods, .. } = **unmanaged;
    let has_no_record = |gpu_node: &GpuNode| {
        belongs_to(gpu_node, node) && gpu_node.spec.current.is_none() && gpu_node.spec.last_update.is_none()
    };
    // A policy whose only nodes are Jetsons names one.
    let is_settled = gpu_node.is_none_or(has_no_record)
        && labelled_revisions(node) == StageRevisions::default()
        && !node.is_jetson()
        && pods_to_recreate(sets, node, gpu_node, pods, clock).next().is_none()
        && !clock.asks_again();
    let summary = || UnmanagedSummary {
        node: node.name.clone(),
        selected_by: unmanaged.selected_by.map(name_of),
        until: clock.next(),
    };
    is_settled.then(|| Settled::Unmanaged(summary()))
}

/// Answers exist within one pass only.
fn has_answered_everything(assessed: &Assessment<'_>) -> bool {
    let Assessment { member, validation, verdict, .. } = assessed;
    let is_validated = validation.pod.is_none() && validation.log_of.is_none() && verdict.phase != Phase::Validation;
    is_validated && member.gpu_pods.is_none() && !member.is_unconfirmed && member.contested.is_none()
}

fn has_target(member: &Member<'_>) -> bool {
    match member.want() {
        Some(want) => *want == member.have,
        None => member.have == StageRevisions::default(),
    }
}

/// Returns the decision on a node that keeps what it has.
fn rest(member: &Member<'_>) -> Decision {
    Decision {
        updates_begun: member.updates_begun(),
        last_update: member.last_update().cloned(),
        not_before: member.not_before(),
        ..settle(member, member.have.clone(), &member.clock)
    }
}

/// Whether nothing of the node depends on other nodes of its pool.
fn has_own_facts(member: &Member<'_>) -> bool {
    let belongs = member.gpu_node.is_some_and(|gpu_node| belongs_to(gpu_node, member.node));
    belongs
        && member.rollout().is_none()
        && member.most_in_pool.is_none()
        && node_taints::wanted(member).is_none()
        && node_taints::is_clean(member.node)
}

fn is_of_no_interest(member: &Member<'_>, sets: &DaemonSets) -> bool {
    let clock = &*member.clock;
    let toolkit = member.pod(Stage::Toolkit);
    !driver_awaits_users(member, clock)
        && mig::differs(member).is_none()
        && !is_on_its_way(sets, member.node, &member.have, toolkit, clock)
        && toolkit.is_none_or(|pod| !is_entering(sets, pod, clock) && !is_to_be_recreated(sets, pod, clock))
        && pods_to_recreate(sets, member.node, member.gpu_node, &member.pods, clock).next().is_none()
}
