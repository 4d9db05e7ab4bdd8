//! Why a node is in its state, as a chain of checks from its Node to its GPUs, and what to do.

use gpu_operator_crd::{GpuNode, GpuNodeStatus, Phase, Reason};
use gpu_operator_plan::{catalogue::Catalogue, inventory::records};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{discovery, node_facts::Facts, reason::plain, stages};
use crate::{
    output::Tone,
    report::{Line, Look, Report},
};

/// The time within which the operator reports that a deadline has passed, in seconds.
const LATENESS: i64 = 60;

pub fn report(facts: &Facts, catalogue: &Catalogue, now: Timestamp) -> Report {
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
    let action = reason.map(|reason| plain(reason.explanation().action)).filter(|action| !action.is_empty());
    let events = facts.events.clone().unwrap_or_default();
    let events: Vec<_> = Some(Line::text("Events:")).filter(|_| !events.is_empty()).into_iter().chain(events).collect();
    let notes = notes(facts, found, gpu_node, now);
    let is_good = shown.phase == Phase::Ready && !is_away;
    let sections = vec![
        vec![title(&facts.name, status, is_good)],
        checks,
        events,
        action.map(|action| Line::label("Do", action)).into_iter().collect(),
        notes.into_iter().map(|note| Line::label("Note", format!("{note}."))).collect(),
    ];
    Report { is_good, sections }
}

fn title(node: &str, status: Option<&GpuNodeStatus>, is_good: bool) -> Line {
    let (tone, state) = match status {
        _ if is_good => (Tone::Good, "ready"),
        Some(_) => (Tone::Bad, "not ready"),
        None => (Tone::Warning, "not known as a GPU node"),
    };
    let mut title =
        Line { state: Some(tone), cells: vec![state.to_owned()], look: Look::Title, ..Line::named(node, "") };
    let Some(status) = status else { return title };
    title.cells.extend(Some(format!("phase {}", status.phase.as_str())).filter(|_| !is_good));
    if let Some(reason) = &status.reason {
        title.cells.push(reason.to_string());
        title.since = status.since.as_ref().map(|since| since.0);
        title.deadline = status.deadline.as_ref().map(|deadline| deadline.0);
    }
    title.lines.extend(Some(Line::text(&status.message)).filter(|line| !line.text.is_empty()));
    if !status.waits_on.is_empty() {
        title.lines.push(Line::named("Waits for", status.waits_on.join(", ")));
    }
    title
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
