//! The facts that explain a node, read by five requests.

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use gpu_operator_plan::world::{ContainerFacts, ContainerState, NodeFacts, ObservedTime, PodFacts, TrimmedNode};
use k8s_openapi::{
    api::core::v1::{Event, Node, NodeCondition, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{Client, ResourceExt, api::ListParams};

use crate::{
    output::Tone,
    read::{self, ReadError},
    report::{Line, Look},
};

/// The reporting component of the operator's Events.
const COMPONENT: &str = "gpu-operator";
/// The namespace of Events about objects without a namespace.
const EVENTS_NAMESPACE: &str = "default";
const MAX_EVENTS: usize = 5;

/// What is read, or why it is not known.
pub type Known<T> = Result<T, String>;

#[derive(Clone, Debug)]
pub struct Facts {
    pub name: String,
    pub namespace: String,
    pub node: Known<Option<NodeState>>,
    pub gpu_node: Known<Option<GpuNode>>,
    pub policies: Known<Vec<ClusterGpuPolicy>>,
    pub pods: Known<NodePods>,
    /// The latest Events about the node, oldest first.
    pub events: Known<Vec<Line>>,
}

#[derive(Clone, Debug, Default)]
pub struct NodeState {
    pub facts: NodeFacts,
    pub ready: Option<NodeCondition>,
}

#[derive(Clone, Debug, Default)]
pub struct NodePods {
    /// The probe's pod, and those of the stages.
    pub own: Vec<PodFacts>,
    pub detector: Option<DetectorPod>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectorPod {
    pub name: String,
    /// Its phase, such as `Running`.
    pub phase: String,
}

/// Reads the facts, or `None` if there is neither a Node nor a GpuNode of this name.
pub async fn read(client: &Client, name: &str, namespace: &str) -> Result<Option<Facts>, ReadError> {
    let node = read::get::<Node>(client, None, name).await;
    let gpu_node = read::get::<GpuNode>(client, None, name).await;
    let (node, gpu_node) = match (node, gpu_node) {
        (Ok(None), Ok(None)) => return Ok(None),
        (Err(error), Err(_)) => return Err(error),
        (node, gpu_node) => (node, gpu_node),
    };
    let on_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let about = format!("involvedObject.name={name},reportingComponent={COMPONENT}");
    let about = ListParams::default().fields(&about);
    let policies = read::list::<ClusterGpuPolicy>(client, None, ListParams::default()).await;
    let pods = read::list::<Pod>(client, Some(namespace), on_node).await;
    let found = read::list::<Event>(client, Some(EVENTS_NAMESPACE), about).await;
    Ok(Some(Facts {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        node: known(node).and_then(|node| node.map(NodeState::of).transpose()),
        gpu_node: known(gpu_node),
        policies: known(policies).map(|listed| listed.items),
        pods: known(pods).map(|listed| NodePods::of(&listed.items)),
        events: known(found).map(|listed| events(listed.items)),
    }))
}

fn known<T>(read: Result<T, ReadError>) -> Known<T> {
    read.map_err(|error| error.to_string())
}

impl Facts {
    /// Returns the policy that governs a GpuNode, if it exists and can be read.
    pub fn policy_of(&self, gpu_node: &GpuNode) -> Option<&ClusterGpuPolicy> {
        let name = gpu_node.spec.policy.as_ref()?;
        self.policies.as_ref().ok()?.iter().find(|policy| policy.name_any() == name.as_str())
    }
}

impl NodeState {
    fn of(node: Node) -> Known<Self> {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        let ready = conditions.and_then(|all| all.iter().find(|condition| condition.type_ == "Ready")).cloned();
        let trimmed: Result<TrimmedNode, _> = serde_json::to_value(node).and_then(serde_json::from_value);
        let facts = trimmed.map(|node| NodeFacts::of(&node));
        Ok(Self { facts: facts.map_err(|error| format!("the Node cannot be parsed: {error}"))?, ready })
    }
}

impl NodePods {
    fn of(pods: &[Pod]) -> Self {
        let detector = pods.iter().find(|pod| keys::are_of(pod.labels(), keys::DETECTOR_NAME));
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        let detector = detector.map(|pod| DetectorPod { name: pod.name_any(), phase: phase(pod) });
        Self { own: pods.iter().filter_map(PodFacts::of).collect(), detector }
    }
}

/// Returns the latest Events, oldest first.
fn events(found: Vec<Event>) -> Vec<Line> {
    let of_node = |event: &Event| matches!(event.involved_object.kind.as_deref(), Some("Node" | "GpuNode"));
    let mut events: Vec<Line> = found.into_iter().filter(of_node).map(event).collect();
    events.sort_by_key(|event| event.since);
    events.split_off(events.len().saturating_sub(MAX_EVENTS))
}

fn event(event: Event) -> Line {
    let of_series = event.series.and_then(|series| series.last_observed_time).map(|time| Time(time.0));
    let single = event.event_time.map(|time| Time(time.0));
    let at = of_series.max(event.last_timestamp).max(single).or(event.metadata.creation_timestamp);
    let tone = if event.type_.as_deref() == Some("Warning") { Tone::Warning } else { Tone::Quiet };
    let line = Line::named(event.reason.unwrap_or_default(), event.message.unwrap_or_default());
    Line { state: Some(tone), look: Look::Event, ..line.since(at) }
}

/// Returns the state of a pod as evidence.
pub fn of_pod(pod: &PodFacts) -> Line {
    let (state, since) = pod_state(pod);
    Line::evidence(format!("pod {}: {state}", pod.name)).since(since.map(|at| Time(at.reported())))
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
