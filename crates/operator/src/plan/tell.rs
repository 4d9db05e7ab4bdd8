//! What is told: of a node beside how far it is, and to people as Events.

use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, GpuNodeStatus, Phase, keys, policy::Labels, reason::Reason,
};
use kube::ResourceExt;
use serde::Serialize;

use super::{judge, judge::Verdict, member::Member, misnomer, note::Note, policy, rollout::Decision};

/// A transition that people should hear of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Transition {
    /// Whose.
    pub subject: Subject,
    /// In one word.
    pub reason: Reason,
    /// In a sentence.
    pub message: String,
}

/// Whose transition it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Subject {
    /// A Node, by name and uid.
    Node(String, String),
    /// A policy, by name and uid.
    Policy(String, String),
    /// An object of somebody else's in a namespace, such as a pod.
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
    /// The uid of the object.
    #[must_use]
    pub fn uid(&self) -> &str {
        match self {
            Self::Node(_, uid) | Self::Policy(_, uid) | Self::Namespaced { uid, .. } => uid,
        }
    }
}

/// Says beside the verdict what else is the matter, where the verdict itself is not more urgent.
pub fn annotate(
    verdict: &Verdict,
    decision: &Decision,
    (conflicts, published): (&[(String, String)], &Labels),
    member: &Member<'_>,
) -> Verdict {
    let ready = verdict.phase == Phase::Ready;
    let in_turn = decision.note.as_ref().is_some_and(|note| note.reason == Reason::RuntimeTurnPending);
    let gentle = ready || !verdict.reason.is_failure() && (decision.rollout.is_some() || in_turn);
    let conflict = conflicts.first().map(|(key, value)| {
        let from = if keys::is_discovered(key) { "do without compatibility.labels" } else { "from the policy" };
        let message =
            format!("label {key} carries {value:?} already and is left as it is; remove it from the node or {from}");
        Note::new(Reason::LabelConflict, message)
    });
    let missing = judge::gpu_missing(member, Phase::Ready).map(|missing| Note::new(missing.reason, missing.message));
    let of_move = decision.note.iter().filter(|_| gentle);
    let of_ready = member.health.note.iter().chain(&missing).chain(&conflict).chain(&member.notes).filter(|_| ready);
    let standing: Vec<&Note> = of_move.chain(of_ready).collect();
    // What the user wrote is no trouble, and has no word of its own.
    let known = member.discovery.accelerators.first().map(|accelerator| accelerator.name.as_str());
    let model = member.model().filter(|model| ready && Some(*model) == known);
    let misnomer = misnomer::remark(published, &member.node.labels, model);
    let Some(first) = standing.first() else {
        let message = [Some(verdict.message.clone()), misnomer].into_iter().flatten().collect::<Vec<_>>().join("; ");
        return Verdict { message, ..verdict.clone() };
    };
    // One word, but every sentence.
    let sentences = standing.iter().map(|note| note.message.as_str()).chain(misnomer.as_deref());
    let message = sentences.collect::<Vec<_>>().join("; ");
    Verdict { reason: first.reason, message, waits_on: first.waits_on.clone(), ..verdict.clone() }
}

/// Failures, and the way out of whatever came before.
pub fn node_transition(member: &Member<'_>, status: &GpuNodeStatus) -> Option<Transition> {
    let (before, reason) = (member.status(), status.reason?);
    let was_ready = before.is_some_and(GpuNodeStatus::is_ready);
    let old = before.and_then(|before| before.reason);
    // That a node has become ready is news after trouble; in an install, it is one more write for every node.
    let was_in_trouble = old.is_some_and(|old| old.is_failure() || old.is_note() || old == Reason::NodeNotReady);
    let telling = reason.is_failure()
        || reason.is_note()
        || was_ready && !status.is_ready()
        || was_in_trouble && status.is_ready();
    (old != Some(reason) && telling).then(|| Transition {
        subject: Subject::Node(member.node.name.clone(), member.node.uid.clone()),
        reason,
        message: status.message.clone(),
    })
}

pub fn ready_transition(policy: &ClusterGpuPolicy, status: &ClusterGpuPolicyStatus) -> Option<Transition> {
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready")?;
    let reason = if policy::is_ready(status) { Reason::MinimumNodesReady } else { Reason::NodesNotReady };
    Some(Transition {
        subject: Subject::Policy(policy.name_any(), policy.uid().unwrap_or_default()),
        reason,
        message: ready.message.clone(),
    })
}
