//! Events on transitions of nodes and policies.

use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, ConditionType, GpuNodeStatus, NodeName, PolicyName, reason::Reason,
};
use kube::ResourceExt;
use serde::Serialize;

use crate::{assess::member::Member, inventory::membership::name_of};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Transition {
    pub subject: Subject,
    pub reason: Reason,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Subject {
    Node(NodeName, String),
    GpuNode(NodeName, String),
    Policy(PolicyName, String),
}

/// Returns the transition into a failure or out of one, as Events on the Node and on its GpuNode.
pub fn node_transitions(member: &Member<'_>, status: &GpuNodeStatus) -> Vec<Transition> {
    reported(member, status).map(|reason| about(member, reason, &status.message)).unwrap_or_default()
}

/// Returns an Event on a Node, and the same on its GpuNode.
pub fn about(member: &Member<'_>, reason: Reason, message: &str) -> Vec<Transition> {
    let node = Subject::Node(member.node.name.clone(), member.node.uid.clone());
    let gpu_node =
        member.gpu_node.and_then(|gpu_node| Some(Subject::GpuNode(member.node.name.clone(), gpu_node.uid()?)));
    let transition = |subject| Transition { subject, reason, message: message.to_owned() };
    [node].into_iter().chain(gpu_node).map(transition).collect()
}

/// Returns the reason of a node's state if the transition is reported.
fn reported(member: &Member<'_>, status: &GpuNodeStatus) -> Option<Reason> {
    let (before, reason) = (member.status(), status.reason()?);
    let was_ready = before.is_some_and(GpuNodeStatus::is_ready);
    let old = before.and_then(GpuNodeStatus::reason);
    // That a node has become ready is reported only after trouble; in an install, it would be one more write for every
    // node.
    let was_in_trouble = old.is_some_and(|old| old.is_failure() || old.is_note() || old == Reason::NodeNotReady);
    let is_reported = reason.is_failure()
        || reason.is_note()
        || was_ready && !status.is_ready()
        || was_in_trouble && status.is_ready();
    (old != Some(reason) && is_reported).then_some(reason)
}

/// Reports `Ready` when its status changes, and `Stalled` and `Accepted` when they become unfavourable, change their reason, or recover.
pub fn policy_transitions(
    policy: &ClusterGpuPolicy,
    before: &ClusterGpuPolicyStatus,
    status: &ClusterGpuPolicyStatus,
) -> impl Iterator<Item = Transition> {
    let kinds = [(ConditionType::Ready, "False"), (ConditionType::Stalled, "True"), (ConditionType::Accepted, "False")];
    kinds.into_iter().filter_map(move |(kind, unfavourable)| {
        let find = |status: &ClusterGpuPolicyStatus| {
            status.conditions.iter().find(|condition| condition.type_ == kind.as_str()).cloned()
        };
        let (new, old) = (find(status)?, find(before));
        let was_unfavourable = old.as_ref().is_none_or(|old| old.status == unfavourable);
        let is_unfavourable = new.status == unfavourable;
        let is_reported = match kind {
            // A new policy is not ready, which is no transition.
            ConditionType::Ready => was_unfavourable != is_unfavourable,
            _ if is_unfavourable => {
                old.is_none_or(|old| (old.status, old.reason) != (new.status.clone(), new.reason.clone()))
            }
            _ => old.is_some() && was_unfavourable,
        };
        let reason = new.reason.parse().ok().filter(|_| is_reported)?;
        let subject = Subject::Policy(name_of(policy), policy.uid().unwrap_or_default());
        Some(Transition { subject, reason, message: new.message })
    })
}
