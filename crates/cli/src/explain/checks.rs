//! A check of a node: one link of the chain from its Node to its GPUs.

use gpu_operator_plan::world::{ContainerFacts, ContainerState, ObservedTime, PodFacts};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

/// A check of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    pub name: &'static str,
    /// The result.
    pub state: State,
    /// The evidence in short.
    pub detail: String,
    /// The reason of the condition, unless the check is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The time of the last change of the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The time at which it counts as failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// More evidence, one per line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
}

/// A line of evidence.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// What is observed.
    pub text: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum State {
    /// It is as it should be.
    Done,
    /// It is in progress, or needs attention.
    InProgress,
    Failed,
    /// It waits for an earlier one.
    Pending,
    /// Its result is not known.
    Unknown,
    NotNeeded,
}

impl Check {
    /// Returns a check with its evidence in short.
    pub fn new(name: &'static str, state: State, detail: impl Into<String>) -> Self {
        let (reason, since, deadline, evidence) = (None, None, None, Vec::new());
        Self { name, state, detail: detail.into(), reason, since, deadline, evidence }
    }

    /// Returns the check with the time of its last change.
    pub fn since(self, since: Option<Time>) -> Self {
        Self { since, ..self }
    }

    /// Returns the check with more evidence.
    pub fn with(self, evidence: Vec<Evidence>) -> Self {
        Self { evidence, ..self }
    }
}

impl Evidence {
    /// Returns a line of evidence.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), since: None }
    }

    /// Returns the state of a pod.
    pub fn of_pod(pod: &PodFacts) -> Self {
        let time = |at: ObservedTime| Time(at.reported());
        let (state, since) = pod_state(pod);
        Self { text: format!("pod {}: {state}", pod.name), since: since.map(time) }
    }
}

/// Returns the state of a pod, with the container that is not as it should be, and its time.
fn pod_state(pod: &PodFacts) -> (String, Option<ObservedTime>) {
    if let Some(deletion) = &pod.deletion {
        return ("being deleted".to_owned(), Some(deletion.since));
    }
    if let Some(end) = &pod.end {
        let how = if end.succeeded { "ended successfully" } else { "failed" };
        return (
            [how, &end.reason, &end.message]
                .iter()
                .copied()
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join(": "),
            end.at,
        );
    }
    if let Some(why) = &pod.unschedulable {
        return (format!("not scheduled: {why}"), pod.created);
    }
    let is_running = |container: &ContainerFacts| matches!(container.state, ContainerState::Running(_));
    if pod.running() {
        let restarted =
            pod.containers.iter().find_map(|container| Some((&container.name, container.last_failure.as_ref()?)));
        let restarted = restarted.map(|(name, exit)| format!(", after container {name} exited with {}", exit.code));
        return (format!("running{}", restarted.unwrap_or_default()), pod.running_since());
    }
    let is_unfinished = |container: &&ContainerFacts| match &container.state {
        ContainerState::Ended(exit) => exit.code != 0,
        ContainerState::Waiting { .. } | ContainerState::Running(_) => true,
    };
    let of_init = pod.init.iter().find(is_unfinished);
    match of_init.or_else(|| pod.containers.iter().find(|container| !(is_running(container) && container.ready))) {
        Some(container) => (container_state(container), container.running_since().or(pod.created)),
        None => ("starting".to_owned(), pod.created),
    }
}

fn container_state(container: &ContainerFacts) -> String {
    let name = &container.name;
    let last = container.last_failure.as_ref().filter(|exit| !exit.message.is_empty());
    let last = last.map(|exit| format!("; it exited with {}: {}", exit.code, exit.message)).unwrap_or_default();
    match &container.state {
        ContainerState::Waiting { reason, message } => {
            let parts = [reason.as_str(), message.as_str()];
            let why = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
            let why = if why.is_empty() { "waiting".to_owned() } else { why };
            format!("container {name}: {why}{last}")
        }
        ContainerState::Running(_) => format!("container {name} runs and is not ready{last}"),
        ContainerState::Ended(exit) => format!("container {name} exited with {}: {}", exit.code, exit.message),
    }
}
