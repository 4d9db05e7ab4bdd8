//! Why a node is in its state, as a chain of checks from its Node to its GPUs, and what to do.

use gpu_operator_crd::{GpuNode, GpuNodeStatus, Phase, Reason};
use gpu_operator_plan::{catalogue::Catalogue, inventory::records};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde::Serialize;

use super::{
    checks::Check,
    discovery, gpus,
    node_facts::{Facts, NodeEvent},
    reasons::{Entry, List, Topic, plain},
    stages,
};

/// The time within which the operator reports that a deadline has passed.
const LATENESS: i64 = 60;

/// Why a node is in its state.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// The name of the node.
    pub node: String,
    /// Whether GPU pods can be scheduled on the node.
    pub ready: bool,
    /// The phase. Absent if the node has no GpuNode, or if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The operator's explanation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The time of the last change of phase or reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The time at which the phase counts as failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// The pods that the node waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits_on: Vec<String>,
    /// The checks, from the Node to its GPUs.
    pub checks: Vec<Check>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The latest Events of the operator about the node, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<NodeEvent>,
    /// What is not known, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Returns why a node is in its state.
pub fn report(facts: &Facts, catalogue: &Catalogue, now: Timestamp) -> NodeReport {
    let node = facts.node.as_ref().ok().and_then(Option::as_ref);
    let found = facts.gpu_node.as_ref().ok().and_then(Option::as_ref);
    // Nothing in the GpuNode of an earlier Node of the same name applies to this one.
    let gpu_node = found.filter(|gpu_node| node.is_none_or(|node| records::belongs_to(gpu_node, &node.facts)));
    let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
    let empty = GpuNodeStatus::default();
    let shown = status.unwrap_or(&empty);
    let mut checks = vec![discovery::node(facts), discovery::gpus(facts, gpu_node, catalogue)];
    if let Some(gpu_node) = gpu_node {
        checks.push(discovery::policy(facts, gpu_node));
        checks.extend(stages::checks(facts, gpu_node, shown));
        checks.extend(gpus::checks(facts, gpu_node, shown));
    }
    let is_away = matches!(facts.node, Ok(None)) || node.is_some_and(|node| !node.facts.ready || node.facts.deleting);
    let reason = status.and_then(GpuNodeStatus::reason);
    // The operator may not have observed yet that the Node is unavailable.
    let reason = if is_away && shown.is_ready() { Some(Reason::NodeNotReady) } else { reason };
    let entry = reason.and_then(entry);
    NodeReport {
        node: facts.name.clone(),
        ready: shown.phase == Phase::Ready && !is_away,
        phase: status.map(|status| status.phase.as_str()),
        reason: shown.reason.as_ref().map(|reason| reason.as_str().to_owned()),
        message: shown.message.clone(),
        since: shown.since.clone(),
        deadline: shown.deadline.clone(),
        waits_on: shown.waits_on.clone(),
        checks,
        action: entry.map(|entry| plain(entry.action)).filter(|action| !action.is_empty()),
        events: facts.events.clone().unwrap_or_default(),
        notes: notes(facts, found, gpu_node, now),
    }
}

/// Returns the explanation of a reason of nodes.
fn entry(reason: Reason) -> Option<&'static Entry> {
    let entries = Topic::Status(reason).entries();
    entries.iter().find(|entry| entry.list != List::Policy).or(entries.first())
}

/// Returns what is not known, and why.
fn notes(facts: &Facts, found: Option<&GpuNode>, gpu_node: Option<&GpuNode>, now: Timestamp) -> Vec<String> {
    let mut notes = Vec::new();
    if found.is_some() && gpu_node.is_none() {
        notes.push("the GpuNode of this name is of an earlier Node; the operator replaces it".to_owned());
    }
    for (what, why) in [
        ("the state of its policy", facts.policies.as_ref().err()),
        ("the pods on the node", facts.pods.as_ref().err()),
        ("the Events about the node", facts.events.as_ref().err()),
    ] {
        notes.extend(why.map(|why| format!("{what} cannot be shown: {why}")));
    }
    let Some((gpu_node, status)) = gpu_node.and_then(|gpu_node| Some((gpu_node, gpu_node.status.as_ref()?))) else {
        return notes;
    };
    if let (Some(reason), None) = (&status.reason, status.reason()) {
        notes.push(format!("this version does not know the reason {reason}; install the version of the operator"));
    }
    if status.is_ready() && matches!(&facts.node, Ok(Some(node)) if !node.facts.ready) {
        let note = "the operator has not reported that the Node is NotReady: check that the operator is running";
        notes.push(note.to_owned());
    }
    let is_late = |deadline: &Time| now.duration_since(deadline.0).as_secs() > LATENESS;
    let may_expire = status.reason().is_none_or(|reason| !reason.is_failure());
    let generation = gpu_node.metadata.generation;
    if status.deadline.as_ref().is_some_and(is_late) && may_expire {
        notes.push("the deadline has passed and the operator has not reported it: check that it is running".to_owned());
    } else if status.observed_generation.is_some() && status.observed_generation < generation {
        notes.push(
            "the status is older than the decisions in the GpuNode's spec: check that the operator is running"
                .to_owned(),
        );
    }
    notes
}
