//! Why a node is in its state, as a chain of checks from its Node to its GPUs, and what to do; and its text.

use gpu_operator_crd::{GpuNode, GpuNodeStatus, Phase, Reason};
use gpu_operator_plan::{catalogue::Catalogue, inventory::records};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde::Serialize;

use super::{
    discovery,
    node_facts::{Check, Facts, NodeEvent, State},
    reasons::{Entry, List, Topic, plain},
    stages,
};
use crate::{
    context::Outcome,
    output::{Screen, Tone, age, wrap},
};

/// The time within which the operator reports that a deadline has passed.
const LATENESS: i64 = 60;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    pub node: String,
    /// Whether GPU pods can be scheduled on the node.
    pub ready: bool,
    /// The phase. Absent if the node has no GpuNode, or if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The time of the last change of phase or reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The time at which the phase counts as failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits_on: Vec<String>,
    pub checks: Vec<Check>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The latest Events of the operator about the node, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<NodeEvent>,
    /// What is not known, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl NodeReport {
    pub fn outcome(&self) -> Outcome {
        if self.ready { Outcome::Good } else { Outcome::Bad }
    }
}

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
        checks.extend(stages::gpus(facts, gpu_node, shown));
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

fn entry(reason: Reason) -> Option<&'static Entry> {
    let entries = Topic::Status(reason).entries();
    entries.iter().find(|entry| entry.list != List::Policy).or(entries.first())
}

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

/// The column in which the evidence of a check begins.
const COLUMN: usize = 16;

pub fn text(report: &NodeReport, screen: Screen, now: Timestamp) -> String {
    let mut lines = headline(report, screen, now);
    lines.push(String::new());
    for item in &report.checks {
        lines.extend(check(item, screen, now));
    }
    if !report.events.is_empty() {
        lines.extend([String::new(), "Events:".to_owned()]);
        for event in &report.events {
            let ago = event.at.as_ref().map(|at| format!("{} ago", age(at.0, now))).unwrap_or_default();
            let tone = if event.kind == "Warning" { Tone::Warning } else { Tone::Quiet };
            let first = format!("{} {ago:<9} ", screen.mark(tone));
            lines.extend(wrap(&format!("{}: {}", event.reason, event.message), &first, 4));
        }
    }
    if let Some(action) = &report.action {
        lines.push(String::new());
        lines.extend(wrap(action, "Do: ", 4));
    }
    if !report.notes.is_empty() {
        lines.push(String::new());
    }
    lines.extend(report.notes.iter().flat_map(|note| wrap(&format!("{note}."), "Note: ", 6)));
    lines.join("\n") + "\n"
}

fn headline(report: &NodeReport, screen: Screen, now: Timestamp) -> Vec<String> {
    let NodeReport { node, ready, phase, reason, message, since, deadline, .. } = report;
    let (tone, state) = match phase {
        _ if *ready => (Tone::Good, "ready"),
        Some(_) => (Tone::Bad, "not ready"),
        None => (Tone::Warning, "not known as a GPU node"),
    };
    let state = [
        Some(format!("{}: {}", screen.paint(Tone::Strong, node), screen.paint(tone, state))),
        phase.filter(|_| !ready).map(|phase| format!("phase {phase}")),
        reason.as_ref().map(|reason| format!("{reason}{}", times(since.as_ref(), deadline.as_ref(), now))),
    ];
    let mut lines = wrap(&state.into_iter().flatten().collect::<Vec<_>>().join(", "), "", 2);
    if !message.is_empty() {
        lines.extend(wrap(message, "  ", 2));
    }
    if !report.waits_on.is_empty() {
        lines.extend(wrap(&format!("Waits for: {}", report.waits_on.join(", ")), "  ", 4));
    }
    lines
}

fn times(since: Option<&Time>, deadline: Option<&Time>, now: Timestamp) -> String {
    let lasted = since.map(|since| format!(" for {}", age(since.0, now))).unwrap_or_default();
    let left = deadline.map(|deadline| {
        if deadline.0 > now {
            format!(", deadline in {}", age(now, deadline.0))
        } else {
            format!(", deadline passed {} ago", age(deadline.0, now))
        }
    });
    lasted + &left.unwrap_or_default()
}

fn check(check: &Check, screen: Screen, now: Timestamp) -> Vec<String> {
    let Check { name, state, detail, since, deadline, evidence, .. } = check;
    let tone = match state {
        State::Done => Tone::Good,
        State::InProgress | State::Unknown => Tone::Warning,
        State::Failed => Tone::Bad,
        State::Pending | State::NotNeeded => Tone::Quiet,
    };
    let first = format!("{} {name:<width$}", screen.mark(tone), width = COLUMN - 2);
    let times = times(since.as_ref(), deadline.as_ref(), now);
    let detail = if times.is_empty() { detail.clone() } else { format!("{detail} ({})", times.trim_start()) };
    let mut lines = wrap(&detail, &first, COLUMN);
    for line in evidence {
        let lasted = line.since.as_ref().map(|since| format!(" ({})", age(since.0, now))).unwrap_or_default();
        lines.extend(wrap(&format!("{}{lasted}", line.text), &" ".repeat(COLUMN), COLUMN + 2));
    }
    lines
}
