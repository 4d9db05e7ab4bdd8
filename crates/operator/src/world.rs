//! The observed world: what the plan reads, and nothing else. Facts are taken out of API objects here, by pure
//! functions, so that an event which changes none of them (a heartbeat, say) wakes nobody.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys, policy::Stage};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec},
        core::v1::{ContainerStatus, Event, Node, Pod, Toleration},
    },
    jiff::Timestamp,
};
use kube::{Resource, ResourceExt};
use serde::Serialize;

/// Everything the plan knows of the cluster. Keys are object names.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// All policies.
    pub policies: BTreeMap<String, Arc<ClusterGpuPolicy>>,
    /// All nodes, GPU or not.
    pub nodes: BTreeMap<String, Arc<NodeFacts>>,
    /// All GpuNodes.
    pub gpu_nodes: BTreeMap<String, Arc<GpuNode>>,
    /// Our DaemonSets.
    pub daemon_sets: BTreeMap<String, Arc<DaemonSetFacts>>,
    /// Pods of our DaemonSets and of the probe's.
    pub pods: BTreeMap<String, Arc<PodFacts>>,
    /// What the API server said last when it refused a DaemonSet's pods, by DaemonSet.
    pub refusals: BTreeMap<String, Arc<Refusal>>,
    /// Answers to [`crate::plan::Plan::questions`]: pods that use a GPU, `namespace/name`, by node. A node that is
    /// not a key has not been asked about.
    pub gpu_pods: BTreeMap<String, Vec<String>>,
    /// DaemonSets whose repair changed nothing, by the generation that it found: something else mends them back at once.
    pub futile_repairs: BTreeMap<String, i64>,
    /// What the API server said to writes of ours that it refused in the last pass.
    pub refused_writes: Vec<String>,
    /// Policies that are there but cannot be read: of another version of the API. What they govern stays as it is.
    pub unreadable_policies: BTreeSet<String>,
    /// GpuNodes that are there but cannot be read. Their nodes stay as they are.
    pub unreadable_gpu_nodes: BTreeSet<String>,
}

/// What the plan reads of a DaemonSet of ours.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DaemonSetFacts {
    /// Hash of what was applied last.
    pub applied: Option<String>,
    /// The policy it belongs to.
    pub policy: Option<String>,
    /// Changes with [`Self::spec`], and with nothing else.
    pub generation: Option<i64>,
    /// What it is now.
    pub spec: Option<DaemonSetSpec>,
    /// Whether somebody else has added something to [`Self::spec`].
    pub added_to: bool,
}

impl DaemonSetFacts {
    /// The facts of a DaemonSet.
    #[must_use]
    pub fn of(set: &DaemonSet) -> Self {
        Self {
            applied: set.annotations().get(keys::APPLIED).cloned(),
            policy: set.labels().get(keys::POLICY).cloned(),
            generation: set.metadata.generation,
            spec: set.spec.clone(),
            added_to: added_to(set),
        }
    }
}

/// Whether a field of the spec is owned by somebody else and not by us: the API server's own record of it.
fn added_to(set: &DaemonSet) -> bool {
    let spec = |ours: bool| {
        let entries = set.managed_fields().iter();
        let entries = entries.filter(move |entry| (entry.manager.as_deref() == Some(keys::MANAGER)) == ours);
        entries.filter_map(|entry| entry.fields_v1.as_ref()?.0.get("f:spec"))
    };
    spec(false).any(|theirs| !spec(true).any(|ours| covers(ours, theirs)))
}

/// Whether a set of managed fields has all of another one.
fn covers(ours: &serde_json::Value, theirs: &serde_json::Value) -> bool {
    theirs.as_object().into_iter().flatten().all(|(key, below)| ours.get(key).is_some_and(|ours| covers(ours, below)))
}

/// What the plan reads of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its uid: another one under the same name is another node.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Label keys that the operator applied, by the API server's own record of it.
    pub owned_labels: BTreeSet<String>,
    /// Condition Ready is True.
    pub ready: bool,
    /// Marked unschedulable.
    pub cordoned: bool,
    /// Has a deletion timestamp.
    pub deleting: bool,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Taints that keep pods away.
    pub taints: Vec<TaintFact>,
    /// What its annotation [`keys::GPU_COUNT`] says.
    pub gpu_count: Option<String>,
    /// Allocatable `nvidia.com/gpu`, if the key is there.
    pub allocatable: Option<u32>,
    /// Processor architecture in Kubernetes' words, such as `amd64`.
    pub arch: String,
    /// Container runtime and version in Kubernetes' words, such as `containerd://2.1.4`.
    pub runtime: String,
}

/// A taint that keeps pods away from a node: `NoSchedule` or `NoExecute`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaintFact {
    /// Its key.
    pub key: String,
    /// Its value; empty where it has none.
    pub value: String,
    /// Its effect.
    pub effect: String,
}

impl TaintFact {
    /// Whether a toleration covers it.
    #[must_use]
    pub fn tolerated_by(&self, toleration: &Toleration) -> bool {
        let same = |wanted: &Option<String>, actual: &str| wanted.as_deref().is_none_or(|wanted| wanted == actual);
        let exists = toleration.operator.as_deref() == Some("Exists");
        same(&toleration.effect.clone().filter(|effect| !effect.is_empty()), &self.effect)
            && match toleration.key.as_deref().filter(|key| !key.is_empty()) {
                Some(key) => {
                    key == self.key && (exists || toleration.value.as_deref().unwrap_or_default() == self.value)
                }
                None => exists,
            }
    }
}

impl std::fmt::Display for TaintFact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let equals = if self.value.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{}:{}", self.key, self.value, self.effect)
    }
}

impl NodeFacts {
    /// The facts of a Node.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let status = node.status.as_ref();
        let condition = |kind: &str| {
            status
                .and_then(|status| status.conditions.as_ref())
                .and_then(|conditions| conditions.iter().find(|condition| condition.type_ == kind))
                .is_some_and(|condition| condition.status == "True")
        };
        let info = status.and_then(|status| status.node_info.as_ref());
        Self {
            name: node.name_any(),
            uid: node.uid().unwrap_or_default(),
            created: node.creation_timestamp().map(|time| time.0),
            taints: taints(node),
            gpu_count: node.annotations().get(keys::GPU_COUNT).cloned(),
            labels: node.labels().clone(),
            owned_labels: owned_labels(node),
            ready: condition("Ready"),
            cordoned: node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default(),
            deleting: node.meta().deletion_timestamp.is_some(),
            allocatable: status
                .and_then(|status| status.allocatable.as_ref())
                .and_then(|allocatable| allocatable.get(keys::GPU_RESOURCE))
                .and_then(|quantity| quantity.0.parse().ok()),
            arch: info.map(|info| info.architecture.clone()).unwrap_or_default(),
            runtime: info.map(|info| info.container_runtime_version.clone()).unwrap_or_default(),
        }
    }

    /// Whether the node can be expected to serve: the ones that cannot are counted apart.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.ready && !self.cordoned && !self.deleting
    }
}

/// The taints that keep pods away, but for those of Kubernetes' own, which come and go with a node's conditions and which
/// DaemonSet pods tolerate.
fn taints(node: &Node) -> Vec<TaintFact> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    let binding = taints.filter(|taint| taint.effect != "PreferNoSchedule");
    let lasting = binding.filter(|taint| !taint.key.starts_with("node.kubernetes.io/"));
    lasting
        .map(|taint| TaintFact {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: taint.effect.clone(),
        })
        .collect()
}

/// Label keys that our label manager owns, from `metadata.managedFields`. The API server keeps this record in the
/// same write as the labels themselves, so that a crash between two writes cannot lose it.
fn owned_labels(node: &Node) -> BTreeSet<String> {
    node.managed_fields()
        .iter()
        .filter(|entry| entry.manager.as_deref() == Some(keys::LABEL_MANAGER))
        .filter_map(|entry| entry.fields_v1.as_ref()?.0.get("f:metadata")?.get("f:labels")?.as_object())
        .flat_map(|labels| labels.keys().filter_map(|key| key.strip_prefix("f:").map(str::to_owned)))
        .collect()
}

/// What the plan reads of a Pod of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodFacts {
    /// Its name.
    pub name: String,
    /// The node it is on, or is meant for.
    pub node: String,
    /// What it is of.
    pub role: Role,
    /// Its DaemonSet's group, from its node selector.
    pub group: Option<String>,
    /// Hash of what its DaemonSet was when it was made.
    pub applied: Option<String>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Has a deletion timestamp.
    pub deleting: bool,
    /// Why the scheduler finds no place for it.
    pub unschedulable: Option<String>,
    /// Init containers, in order.
    pub init: Vec<ContainerFacts>,
    /// Containers.
    pub containers: Vec<ContainerFacts>,
}

/// What a pod of ours is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Role {
    /// A stage of a policy.
    Operand(Stage),
    /// The chart's node agent.
    Probe,
}

/// What the plan reads of a container's status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContainerFacts {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub state: ContainerState,
    /// How its last run ended, if it ended badly.
    pub last_failure: Option<Exit>,
    /// Passes its readiness probe, or has none and runs.
    pub ready: bool,
}

/// Where a container is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum ContainerState {
    /// Not started; kubelet's reason and message.
    Waiting {
        /// Such as `ImagePullBackOff`.
        reason: String,
        /// Kubelet's words.
        message: String,
    },
    /// Running since then.
    Running(Option<Timestamp>),
    /// Ended.
    Ended(Exit),
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exit {
    /// Exit code.
    pub code: i32,
    /// Its own last words, or kubelet's reason.
    pub message: String,
}

impl PodFacts {
    /// The facts of a pod of ours; `None` for a pod that is not.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        let labels = pod.labels();
        let role = match labels.get(keys::STAGE) {
            Some(stage) => Role::Operand(Stage::ALL.into_iter().find(|known| known.as_str() == stage)?),
            None if labels.get("app.kubernetes.io/name").is_some_and(|name| name == "nvml-probe") => Role::Probe,
            None => return None,
        };
        let spec = pod.spec.as_ref()?;
        let status = pod.status.as_ref();
        let group = match role {
            Role::Operand(stage) => spec.node_selector.as_ref().and_then(|selector| selector.get(stage.key()).cloned()),
            Role::Probe => None,
        };
        let containers = |statuses: Option<&Vec<ContainerStatus>>| {
            statuses.into_iter().flatten().map(ContainerFacts::of).collect::<Vec<_>>()
        };
        Some(Self {
            name: pod.name_any(),
            node: spec.node_name.clone().or_else(|| intended_node(pod))?,
            role,
            group,
            applied: pod.annotations().get(keys::APPLIED).cloned(),
            created: pod.creation_timestamp().map(|time| time.0),
            deleting: pod.meta().deletion_timestamp.is_some(),
            unschedulable: status
                .and_then(|status| status.conditions.as_ref())
                .and_then(|conditions| conditions.iter().find(|condition| condition.type_ == "PodScheduled"))
                .filter(|condition| condition.status == "False")
                .map(|condition| condition.message.clone().unwrap_or_default()),
            init: containers(status.and_then(|status| status.init_container_statuses.as_ref())),
            containers: containers(status.and_then(|status| status.container_statuses.as_ref())),
        })
    }

    /// Whether a main container runs.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.containers.iter().any(|container| matches!(container.state, ContainerState::Running(_)))
    }

    /// Whether its main containers run, which they only do once every gate before them has opened.
    #[must_use]
    pub fn running(&self) -> bool {
        !self.deleting
            && !self.containers.is_empty()
            && self
                .containers
                .iter()
                .all(|container| matches!(container.state, ContainerState::Running(_)) && container.ready)
    }
}

/// The node that the DaemonSet controller meant a pod for that is not scheduled yet.
fn intended_node(pod: &Pod) -> Option<String> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let fields = terms.iter().filter_map(|term| term.match_fields.as_ref()).flatten();
    fields.filter(|field| field.key == "metadata.name").find_map(|field| field.values.as_ref()?.first().cloned())
}

impl ContainerFacts {
    fn of(status: &ContainerStatus) -> Self {
        let exit = |ended: &k8s_openapi::api::core::v1::ContainerStateTerminated| Exit {
            code: ended.exit_code,
            message: ended.message.clone().or_else(|| ended.reason.clone()).unwrap_or_default().trim().to_owned(),
        };
        let state = status.state.clone().unwrap_or_default();
        let state = if let Some(running) = state.running {
            ContainerState::Running(running.started_at.map(|time| time.0))
        } else if let Some(ended) = &state.terminated {
            ContainerState::Ended(exit(ended))
        } else {
            let waiting = state.waiting.unwrap_or_default();
            ContainerState::Waiting {
                reason: waiting.reason.unwrap_or_default(),
                message: waiting.message.unwrap_or_default(),
            }
        };
        let last = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        Self {
            name: status.name.clone(),
            state,
            last_failure: last.map(exit).filter(|exit| exit.code != 0),
            ready: status.ready,
        }
    }
}

/// The API server's last refusal of a DaemonSet's pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The API server's words.
    pub message: String,
    /// When it said so last.
    pub at: Option<Timestamp>,
}

impl Refusal {
    /// The DaemonSet and its refusal, from a `FailedCreate` event of the DaemonSet controller.
    #[must_use]
    pub fn of(event: &Event) -> Option<(String, Self)> {
        let object = &event.involved_object;
        if object.kind.as_deref() != Some("DaemonSet") || event.reason.as_deref() != Some("FailedCreate") {
            return None;
        }
        let at = event.last_timestamp.as_ref().map(|time| time.0);
        let at = at.or_else(|| event.event_time.as_ref().map(|time| time.0));
        Some((object.name.clone()?, Self { message: event.message.clone().unwrap_or_default(), at }))
    }
}

/// Whether a pod has, or is about to have, a GPU of its node: it requests one and has not ended.
#[must_use]
pub fn uses_gpu(pod: &Pod) -> bool {
    let ended = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
    let Some(spec) = pod.spec.as_ref().filter(|_| !ended) else {
        return false;
    };
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(|container| {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        limits.is_some_and(|limits| {
            // MIG slices (`nvidia.com/mig-…`) and shared GPUs (`nvidia.com/gpu.shared`) hold the driver as well.
            limits.iter().any(|(name, quantity)| name.starts_with("nvidia.com/") && quantity.0 != "0")
        })
    })
}
