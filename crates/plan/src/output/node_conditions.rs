//! The conditions of a Node: the health of its GPUs, and whether they are ready, if the policy requests it. One request applies both.

use gpu_operator_crd::{GpuNodeStatus, NodeConditionType, keys, reason::Reason};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use crate::{
    assess::member::Member,
    output::{body::Body, urgency, write::Write},
    world::{NodeFacts, OwnCondition, OwnConditions},
};

/// Returns whether the node has no condition of this operator.
pub fn is_clean(node: &NodeFacts) -> bool {
    node.own_conditions.is_empty()
}

/// Returns the write that removes the conditions, if there are any.
pub fn removal(node: &NodeFacts) -> Option<Write> {
    (!is_clean(node)).then(|| Write::new(&node.name, Body::Conditions(OwnConditions::new())))
}

/// Returns the write for a node of a policy, given the health of its GPUs and the status of its GpuNode.
pub fn write(
    member: &Member<'_>,
    health: Option<OwnCondition>,
    status: &GpuNodeStatus,
    now: Timestamp,
) -> Option<Write> {
    let present = &member.node.own_conditions;
    let known = |kind| present.get(kind).cloned();
    let healthy = match health {
        // It is written from the first problem on, so a healthy fleet costs no write.
        Some(healthy) => {
            Some(healthy).filter(|new| present.contains_key(keys::HEALTH_CONDITION) || new.status != "True")
        }
        None => known(keys::HEALTH_CONDITION),
    };
    let ready = match member.policy.spec.readiness.node_condition {
        false => None,
        // The status of a node whose report is about to arrive is not written either.
        true if member.is_awaited(now) => known(keys::READY_CONDITION),
        true => ready(member, status, now),
    };
    let wanted = [(keys::HEALTH_CONDITION, healthy), (keys::READY_CONDITION, ready)];
    let wanted: OwnConditions = wanted.into_iter().filter_map(|(kind, wanted)| Some((kind, wanted?))).collect();
    let changes = keys::NODE_CONDITIONS.iter().filter_map(|kind| match (present.get(kind), wanted.get(kind)) {
        (None, None) => None,
        (Some(before), Some(after)) if before.says(after) => None,
        (before, after) => Some(urgency::of_condition(before, after)),
    });
    let urgency = changes.min()?;
    Some(Write { urgency, ..Write::new(&member.node.name, Body::Conditions(wanted)) })
}

/// Returns whether the node is ready, as the status of its GpuNode says. Nothing is known of a node that is away, or whose probe has not
/// reported since its boot, unless its GPUs are allocatable.
fn ready(member: &Member<'_>, status: &GpuNodeStatus, now: Timestamp) -> Option<OwnCondition> {
    let is_ready = |condition: &&Condition| condition.type_ == NodeConditionType::Ready.as_str();
    let Condition { reason, message, .. } = status.conditions.iter().find(is_ready)?;
    let is_unknown = status.reason().is_some_and(Reason::is_away) || member.report.is_none();
    let written = match (status.is_ready(), is_unknown) {
        (true, _) => "True",
        (false, true) => "Unknown",
        (false, false) => "False",
    };
    let before = member.node.own_conditions.get(keys::READY_CONDITION).filter(|before| before.status == written);
    let since = before.and_then(|before| before.since).unwrap_or(now);
    Some(OwnCondition {
        status: written.to_owned(),
        reason: reason.clone(),
        message: message.clone(),
        since: Some(since),
    })
}
