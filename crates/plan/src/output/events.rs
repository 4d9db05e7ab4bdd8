//! Events on transitions of nodes and policies.

use gpu_operator_crd::{ClusterGpuPolicy, ClusterGpuPolicyStatus, GpuNodeStatus, NodeName, PolicyName, reason::Reason};
use kube::ResourceExt;
use serde::Serialize;

use crate::{assess::member::Member, inventory::membership::name_of, output::policy};

/// A transition that is reported by an Event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Transition {
    /// The object that the Event is about.
    pub subject: Subject,
    /// The reason.
    pub reason: Reason,
    /// The message.
    pub message: String,
}

/// The object that a transition is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Subject {
    /// A Node, by name and uid.
    Node(NodeName, String),
    /// A policy, by name and uid.
    Policy(PolicyName, String),
    /// A third-party object in a namespace, such as a pod.
    Namespaced {
        /// Such as `apps/v1`.
        api_version: String,
        /// Such as `ReplicaSet`.
        kind: String,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
}

impl Subject {
    /// Returns the UID of the object.
    #[must_use]
    pub fn uid(&self) -> &str {
        match self {
            Self::Node(_, uid) | Self::Policy(_, uid) | Self::Namespaced { uid, .. } => uid,
        }
    }
}

/// Returns the transition of a node into a failure, or out of one.
pub fn node_transition(member: &Member<'_>, status: &GpuNodeStatus) -> Option<Transition> {
    let (before, reason) = (member.status(), status.reason?);
    let was_ready = before.is_some_and(GpuNodeStatus::is_ready);
    let old = before.and_then(|before| before.reason);
    // That a node has become ready is reported only after trouble; in an install, it would be one more write for every
    // node.
    let was_in_trouble = old.is_some_and(|old| old.is_failure() || old.is_note() || old == Reason::NodeNotReady);
    let is_reported = reason.is_failure()
        || reason.is_note()
        || was_ready && !status.is_ready()
        || was_in_trouble && status.is_ready();
    (old != Some(reason) && is_reported).then(|| Transition {
        subject: Subject::Node(member.node.name.clone(), member.node.uid.clone()),
        reason,
        message: status.message.clone(),
    })
}

/// Returns the transition of a policy that has become ready or is no longer ready.
#[must_use]
pub fn ready_transition(policy: &ClusterGpuPolicy, status: &ClusterGpuPolicyStatus) -> Option<Transition> {
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready")?;
    let reason = if policy::is_ready(status) { Reason::MinimumNodesReady } else { Reason::NodesNotReady };
    Some(Transition {
        subject: Subject::Policy(name_of(policy), policy.uid().unwrap_or_default()),
        reason,
        message: ready.message.clone(),
    })
}
