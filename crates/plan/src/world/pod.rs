//! What the plan reads of Pods.

use std::collections::BTreeSet;

use gpu_operator_common::quantity;
use gpu_operator_crd::{keys, policy::Stage};
use k8s_openapi::{
    api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus},
    jiff::Timestamp,
};
use kube::{Resource, ResourceExt};
use serde::Serialize;

use crate::{
    container_names::DEVICE_NODES,
    world::word::{Word, Words},
};

/// What the plan reads of a Pod of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodFacts {
    /// Its name.
    pub name: String,
    /// The node it is on, or is meant for.
    pub node: Word,
    /// What it is of.
    pub role: Role,
    /// Its DaemonSet's group, from its node selector.
    pub group: Option<Word>,
    /// Hash of what its DaemonSet was when it was made.
    pub applied: Option<Word>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// By when it should have ended, where it is on its way out.
    pub gone_by: Option<Timestamp>,
    /// Why the scheduler finds no place for it.
    pub unschedulable: Option<String>,
    /// How it has ended as a whole, if it has.
    pub end: Option<PodEnd>,
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
    /// A test on a node's GPUs.
    Validation,
}

/// How a pod has ended as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodEnd {
    /// All its containers ended well.
    pub succeeded: bool,
    /// Kubelet's word where it is not the containers' doing, such as `DeadlineExceeded`.
    pub reason: String,
    /// Kubelet's words for that.
    pub message: String,
    /// When the last of its containers ended, as far as that is told.
    pub at: Option<Timestamp>,
}

/// What the plan reads of a container's status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContainerFacts {
    /// Its name.
    pub name: Word,
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
    /// The facts of a pod of ours, in words that it shares with others; `None` for a pod that is not.
    #[must_use]
    pub fn of(pod: &Pod, words: &Words) -> Option<Self> {
        let labels = pod.labels();
        let role = match labels.get(keys::STAGE) {
            Some(stage) if stage == keys::VALIDATION => Role::Validation,
            Some(stage) => Role::Operand(Stage::named(stage)?),
            None if labels.get("app.kubernetes.io/name").is_some_and(|name| name == "nvml-probe") => Role::Probe,
            None => return None,
        };
        let spec = pod.spec.as_ref()?;
        let status = pod.status.as_ref();
        let group = match role {
            Role::Operand(stage) => spec.node_selector.as_ref().and_then(|selector| selector.get(stage.key())),
            Role::Probe | Role::Validation => None,
        };
        let containers = |statuses: Option<&Vec<ContainerStatus>>| {
            statuses.into_iter().flatten().map(|status| ContainerFacts::of(status, words)).collect::<Vec<_>>()
        };
        Some(Self {
            name: pod.name_any(),
            node: words.word(spec.node_name.as_deref().or_else(|| intended_node(pod))?),
            role,
            group: group.map(|group| words.word(group)),
            applied: pod.annotations().get(keys::APPLIED).map(|hash| words.word(hash)),
            created: pod.creation_timestamp().map(|time| time.0),
            gone_by: pod.meta().deletion_timestamp.as_ref().map(|time| time.0),
            unschedulable: status
                .and_then(|status| status.conditions.as_ref())
                .and_then(|conditions| conditions.iter().find(|condition| condition.type_ == "PodScheduled"))
                .filter(|condition| condition.status == "False")
                .map(|condition| condition.message.clone().unwrap_or_default()),
            end: status.and_then(PodEnd::of),
            init: containers(status.and_then(|status| status.init_container_statuses.as_ref())),
            containers: containers(status.and_then(|status| status.container_statuses.as_ref())),
        })
    }

    /// Since when a main container of it has been running.
    #[must_use]
    pub fn running_since(&self) -> Option<Timestamp> {
        self.containers.iter().find_map(ContainerFacts::running_since)
    }

    /// Whether a main container runs.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.containers.iter().any(|container| matches!(container.state, ContainerState::Running(_)))
    }

    /// Whether it is of a stage that has the driver open while it runs: the device plugin, and MPS' daemon.
    #[must_use]
    pub fn holds_driver(&self) -> bool {
        matches!(self.role, Role::Operand(Stage::DevicePlugin | Stage::Mps))
    }

    /// Whether it is that of NVIDIA's own driver container, by the helper that it has beside it.
    #[must_use]
    pub fn is_nvidia_driver(&self) -> bool {
        self.role == Role::Operand(Stage::Driver) && self.init.iter().any(|init| init.name == DEVICE_NODES)
    }

    /// Whether it is on its way out.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.gone_by.is_some()
    }

    /// Whether its main containers run, which they only do once every gate before them has opened.
    #[must_use]
    pub fn running(&self) -> bool {
        !self.is_leaving()
            && !self.containers.is_empty()
            && self
                .containers
                .iter()
                .all(|container| matches!(container.state, ContainerState::Running(_)) && container.ready)
    }
}

impl PodEnd {
    fn of(status: &PodStatus) -> Option<Self> {
        let succeeded = match status.phase.as_deref() {
            Some("Succeeded") => true,
            Some("Failed") => false,
            _ => return None,
        };
        let (reason, message) = (status.reason.clone(), status.message.clone());
        let ends = status.container_statuses.iter().flatten().filter_map(|container| {
            container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0)
        });
        let at = ends.max();
        Some(Self { succeeded, reason: reason.unwrap_or_default(), message: message.unwrap_or_default(), at })
    }
}

/// The node that the DaemonSet controller meant a pod for that is not scheduled yet.
fn intended_node(pod: &Pod) -> Option<&str> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let fields = terms.iter().filter_map(|term| term.match_fields.as_ref()).flatten();
    fields
        .filter(|field| field.key == "metadata.name")
        .find_map(|field| field.values.as_ref()?.first().map(String::as_str))
}

impl ContainerFacts {
    /// Since when it has been running.
    #[must_use]
    pub fn running_since(&self) -> Option<Timestamp> {
        match self.state {
            ContainerState::Running(since) => since,
            _ => None,
        }
    }

    fn of(status: &ContainerStatus, words: &Words) -> Self {
        let exit = |ended: &ContainerStateTerminated| Exit {
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
            name: words.word(&status.name),
            state,
            last_failure: last.map(exit).filter(|exit| exit.code != 0),
            ready: status.ready,
        }
    }
}

/// By what pods of a cluster ask for GPUs, beside NVIDIA's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuAsks {
    /// Names under which somebody's device plugin offers them.
    pub resources: BTreeSet<String>,
    /// Whether a DRA driver hands them out, so that any claim may be one of a GPU.
    pub claims: bool,
}

/// Whether a container of a pod runs. One that waits to be started has no device open.
#[must_use]
pub fn runs_a_container(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let main = status.and_then(|status| status.container_statuses.as_ref());
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let runs = |status: &ContainerStatus| status.state.as_ref().is_some_and(|state| state.running.is_some());
    main.into_iter().chain(init).flatten().any(runs)
}

/// Whether a pod has, or is about to have, a GPU of its node: it asks for one, and has not ended.
#[must_use]
pub fn uses_gpu(pod: &Pod, asks: &GpuAsks) -> bool {
    let ended = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
    let Some(spec) = pod.spec.as_ref().filter(|_| !ended) else {
        return false;
    };
    if asks.claims && spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return true;
    }
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(|container| {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        limits.is_some_and(|limits| {
            // MIG slices (`nvidia.com/mig-…`) and shared GPUs (`nvidia.com/gpu.shared`) hold the driver as well.
            let is_gpu = |name: &String| name.starts_with("nvidia.com/") || asks.resources.contains(name);
            limits.iter().any(|(name, quantity)| is_gpu(name) && quantity::count(&quantity.0) != Ok(0))
        })
    })
}
