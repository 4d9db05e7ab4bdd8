//! What is read to explain a node: five requests.

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use gpu_operator_plan::world::{NodeFacts, PodFacts, TrimmedNode};
use k8s_openapi::{
    api::core::v1::{Event, Node, NodeCondition, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{Client, ResourceExt, api::ListParams};
use serde::Serialize;

use crate::{
    explain::error::ExplainError,
    read::{self, ReadError},
};

/// The reporting component of the operator's Events.
const COMPONENT: &str = "gpu-operator";
/// The namespace of Events about objects without a namespace.
const EVENTS_NAMESPACE: &str = "default";
/// The maximum number of Events that are shown.
const MAX_EVENTS: usize = 5;

/// What is read, or why it is not known.
pub type Known<T> = Result<T, String>;

/// What is known about a node.
#[derive(Clone, Debug)]
pub struct Facts {
    pub name: String,
    /// The namespace of the operator.
    pub namespace: String,
    pub node: Known<Option<NodeState>>,
    pub gpu_node: Known<Option<GpuNode>>,
    pub policies: Known<Vec<ClusterGpuPolicy>>,
    /// The pods of the operator's namespace on the node.
    pub pods: Known<NodePods>,
    /// The latest Events of the operator about the node.
    pub events: Known<Vec<NodeEvent>>,
}

#[derive(Clone, Debug, Default)]
pub struct NodeState {
    pub facts: NodeFacts,
    pub ready: Option<NodeCondition>,
}

/// Pods of the operator's namespace on a node.
#[derive(Clone, Debug, Default)]
pub struct NodePods {
    /// The probe's pod, and those of the stages.
    pub own: Vec<PodFacts>,
    /// The detector's pod and its phase.
    pub detector: Option<DetectorPod>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectorPod {
    pub name: String,
    /// Its phase, such as `Running`.
    pub phase: String,
}

/// An Event about a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeEvent {
    /// When it was last reported.
    pub at: Option<Time>,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub kind: String,
    pub reason: String,
    pub message: String,
}

pub async fn read(client: &Client, name: &str, namespace: &str) -> Result<Facts, ExplainError> {
    let node = read::get::<Node>(client, None, name).await;
    let gpu_node = read::get::<GpuNode>(client, None, name).await;
    let (node, gpu_node) = match (node, gpu_node) {
        (Ok(None), Ok(None)) => {
            let list = "kubectl get nodes,gpunodes".to_owned();
            return Err(ExplainError::NotFound { what: format!("node {name}"), list });
        }
        (Err(error), Err(_)) => return Err(error.into()),
        (node, gpu_node) => (node, gpu_node),
    };
    let on_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let about = format!("involvedObject.name={name},reportingComponent={COMPONENT}");
    let about = ListParams::default().fields(&about);
    let policies = read::list::<ClusterGpuPolicy>(client, None, ListParams::default()).await;
    let pods = read::list::<Pod>(client, Some(namespace), on_node).await;
    let found = read::list::<Event>(client, Some(EVENTS_NAMESPACE), about).await;
    Ok(Facts {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        node: known(node).and_then(|node| node.map(NodeState::of).transpose()),
        gpu_node: known(gpu_node),
        policies: known(policies).map(|listed| listed.items),
        pods: known(pods).map(|listed| NodePods::of(&listed.items)),
        events: known(found).map(|listed| events(listed.items)),
    })
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
fn events(found: Vec<Event>) -> Vec<NodeEvent> {
    let of_node = |event: &Event| matches!(event.involved_object.kind.as_deref(), Some("Node" | "GpuNode"));
    let event = |event: Event| {
        let of_series = event.series.and_then(|series| series.last_observed_time).map(|time| Time(time.0));
        let single = event.event_time.map(|time| Time(time.0));
        let at = of_series.max(event.last_timestamp).max(single).or(event.metadata.creation_timestamp);
        NodeEvent {
            at,
            kind: event.type_.unwrap_or_default(),
            reason: event.reason.unwrap_or_default(),
            message: event.message.unwrap_or_default(),
        }
    };
    let mut events: Vec<NodeEvent> = found.into_iter().filter(of_node).map(event).collect();
    events.sort_by(|a, b| a.at.cmp(&b.at));
    events.split_off(events.len().saturating_sub(MAX_EVENTS))
}
