use std::time::Duration;

use gpu_operator_common::{interned::Interned, text::clipped};
use gpu_operator_crd::{NodeName, Revision, keys, policy::Stage};
use k8s_openapi::{
    api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus},
    jiff::SignedDuration,
};
use kube::{Resource, ResourceExt};
use serde::Serialize;

use crate::{container_names::DEVICE_NODES, time::add, world::observed_time::ObservedTime};

/// The maximum length of a message that is kept, in bytes: that of kubelet's termination messages.
const MAX_MESSAGE: usize = 4096;
/// The maximum number of containers, and of init containers, that are read from one pod.
const MAX_CONTAINERS: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodFacts {
    pub name: String,
    /// The node that it is assigned to, or for which it was created.
    pub node: NodeName,
    pub role: Role,
    /// Its DaemonSet's revision, from its node selector.
    pub revision: Option<Revision>,
    /// The hash of its DaemonSet at the time the pod was created.
    pub applied: Option<Interned>,
    pub created: Option<ObservedTime>,
    /// Since when its sandbox has been ready, which each boot of its node replaces; its creation if kubelet does not report that.
    pub sandbox_since: Option<ObservedTime>,
    pub deletion: Option<Deletion>,
    pub unschedulable: Option<String>,
    pub end: Option<PodEnd>,
    pub init: Vec<ContainerFacts>,
    pub containers: Vec<ContainerFacts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Role {
    /// A stage of a policy.
    Operand(Stage),
    /// The chart's node agent.
    Probe,
    /// A test of a node's GPUs.
    Validation,
    /// A pod that pulls the images of a revision before nodes move to it.
    Preflight,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Deletion {
    pub since: ObservedTime,
    pub grace: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodEnd {
    /// Whether all containers exited with code 0.
    pub succeeded: bool,
    /// Kubelet's reason if the containers did not cause the end, such as `DeadlineExceeded`.
    pub reason: String,
    pub message: String,
    /// When the last container ended, if known.
    pub at: Option<ObservedTime>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContainerFacts {
    pub name: Interned,
    pub state: ContainerState,
    /// How its previous run in the pod's sandbox failed.
    pub last_failure: Option<Exit>,
    /// Whether it passes its readiness probe, or runs and has none.
    pub ready: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum ContainerState {
    /// Not started, with kubelet's reason and message.
    Waiting {
        /// The reason, such as `ImagePullBackOff`.
        reason: String,
        message: String,
    },
    /// Running, with the start time.
    Running(Option<ObservedTime>),
    Ended(Exit),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exit {
    pub code: i32,
    /// Its termination message, or kubelet's reason.
    pub message: String,
}

impl PodFacts {
    /// Returns `None` for a pod that is not this operator's.
    pub fn of(pod: &Pod) -> Option<Self> {
        let labels = pod.labels();
        let role = match labels.get(keys::STAGE) {
            Some(stage) if stage == keys::VALIDATION => Role::Validation,
            Some(stage) if stage == keys::PREFLIGHT => Role::Preflight,
            Some(stage) => Role::Operand(Stage::named(stage)?),
            None if keys::are_of(labels, keys::PROBE_NAME) => Role::Probe,
            None => return None,
        };
        let spec = pod.spec.as_ref()?;
        let status = pod.status.as_ref();
        let revision = match role {
            Role::Operand(stage) => spec.node_selector.as_ref().and_then(|selector| selector.get(stage.key())),
            Role::Probe | Role::Validation | Role::Preflight => None,
        };
        let created = pod.creation_timestamp().map(|time| time.0.into());
        let sandbox = Sandbox::of(status).filter(|_| matches!(role, Role::Operand(_) | Role::Probe));
        let container = |status: &ContainerStatus| ContainerFacts::of(status, sandbox.as_ref());
        let containers = |statuses: Option<&Vec<ContainerStatus>>| {
            statuses.into_iter().flatten().take(MAX_CONTAINERS).map(container).collect::<Vec<_>>()
        };
        Some(Self {
            name: pod.name_any(),
            node: spec.node_name.as_deref().or_else(|| intended_node(pod))?.into(),
            role,
            revision: revision.map(|revision| revision.as_str().into()),
            applied: pod.annotations().get(keys::APPLIED).map(Interned::from),
            created,
            sandbox_since: sandbox.as_ref().map_or(created, |sandbox| sandbox.since),
            deletion: Deletion::of(pod),
            unschedulable: status
                .and_then(|status| status.conditions.as_ref())
                .and_then(|conditions| conditions.iter().find(|condition| condition.type_ == "PodScheduled"))
                .filter(|condition| condition.status == "False")
                .map(|condition| kept(condition.message.as_ref())),
            end: status.and_then(PodEnd::of),
            init: containers(status.and_then(|status| status.init_container_statuses.as_ref())),
            containers: containers(status.and_then(|status| status.container_statuses.as_ref())),
        })
    }

    pub fn running_since(&self) -> Option<ObservedTime> {
        self.containers.iter().find_map(ContainerFacts::running_since)
    }

    pub fn has_started(&self) -> bool {
        self.containers.iter().any(|container| matches!(container.state, ContainerState::Running(_)))
    }

    /// Whether a main container has ended, or failed before its current run.
    pub fn has_failed(&self) -> bool {
        let failed = |container: &ContainerFacts| {
            matches!(container.state, ContainerState::Ended(_)) || container.last_failure.is_some()
        };
        self.containers.iter().any(failed)
    }

    /// Whether this pod proves that the driver's container runs, although kubelet has not reported its start: this pod started later and
    /// its gate waits for the driver. Kubelet reports the pods of a node one by one, in any order.
    pub fn proves_running(&self, driver: &Self) -> bool {
        let is_new = |container: &ContainerFacts| match &container.state {
            ContainerState::Waiting { reason, .. } => {
                ["", "ContainerCreating", "PodInitializing"].contains(&reason.as_str())
            }
            ContainerState::Running(_) | ContainerState::Ended(_) => false,
        };
        driver.containers.iter().all(|container| is_new(container) && container.last_failure.is_none())
            && self
                .running_since()
                .zip(driver.sandbox_since)
                .is_some_and(|(started, sandbox)| started.local() >= sandbox.local())
    }

    /// Whether it has the driver open while it runs.
    pub fn uses_driver(&self) -> bool {
        matches!(self.role, Role::Operand(Stage::DevicePlugin | Stage::Mps))
    }

    /// Returns whether it runs NVIDIA's driver container, which is recognized by its helper container.
    pub fn is_nvidia_driver(&self) -> bool {
        self.role == Role::Operand(Stage::Driver) && self.init.iter().any(|init| init.name == DEVICE_NODES)
    }

    pub fn is_leaving(&self) -> bool {
        self.deletion.is_some()
    }

    /// Whether all main containers run and are ready, so that all gates before them have opened.
    pub fn running(&self) -> bool {
        !self.is_leaving()
            && !self.containers.is_empty()
            && self
                .containers
                .iter()
                .all(|container| matches!(container.state, ContainerState::Running(_)) && container.ready)
    }
}

impl Deletion {
    fn of(pod: &Pod) -> Option<Self> {
        let meta = pod.meta();
        let by = meta.deletion_timestamp.as_ref()?.0;
        let grace = u32::try_from(meta.deletion_grace_period_seconds.unwrap_or_default()).unwrap_or_default();
        let since = add(by, -SignedDuration::from_secs(grace.into())).into();
        Some(Self { since, grace: Duration::from_secs(grace.into()) })
    }
}

impl PodEnd {
    fn of(status: &PodStatus) -> Option<Self> {
        let succeeded = match status.phase.as_deref() {
            Some("Succeeded") => true,
            Some("Failed") => false,
            _ => return None,
        };
        let ends = status.container_statuses.iter().flatten().filter_map(|container| {
            container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0.into())
        });
        let at = ends.max();
        Some(Self { succeeded, reason: kept(status.reason.as_ref()), message: kept(status.message.as_ref()), at })
    }
}

/// The sandbox of a pod whose containers are always restarted. The boot of its node ends it with all its containers. That is no failure,
/// whatever their exit codes are: most have 255, because the container runtime did not see them end.
struct Sandbox {
    /// `None` if there is none.
    since: Option<ObservedTime>,
}

impl Sandbox {
    fn of(status: Option<&PodStatus>) -> Option<Self> {
        let mut conditions = status?.conditions.iter().flatten();
        let reported = conditions.find(|condition| condition.type_ == "PodReadyToStartContainers")?;
        let since = reported.last_transition_time.as_ref().filter(|_| reported.status == "True");
        Some(Self { since: since.map(|time| time.0.into()) })
    }

    /// Whether a container ended in this sandbox. Kubelet reports the sandbox a moment after the start of its first container: if that ends
    /// within this moment, only its next end counts.
    fn saw(&self, ended: &ContainerStateTerminated) -> bool {
        let at = ended.finished_at.as_ref().map(|time| time.0);
        self.since.zip(at).is_some_and(|(since, at)| at > since.reported())
    }
}

/// Truncates a text: kubelet limits a message to 4 KiB.
fn kept(text: Option<&String>) -> String {
    text.map(|text| clipped(text, MAX_MESSAGE).to_owned()).unwrap_or_default()
}

/// Returns the node for which the DaemonSet controller created a pod that is not scheduled yet.
fn intended_node(pod: &Pod) -> Option<&str> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let fields = terms.iter().filter_map(|term| term.match_fields.as_ref()).flatten();
    fields
        .filter(|field| field.key == "metadata.name")
        .find_map(|field| field.values.as_ref()?.first().map(String::as_str))
}

/// containerd's reason for a container that ran when the machine went down. Its exit code is 255.
const UNKNOWN: &str = "Unknown";

fn is_unknown(ended: &ContainerStateTerminated) -> bool {
    ended.reason.as_deref() == Some(UNKNOWN)
}

impl Exit {
    pub fn is_failure(&self) -> bool {
        self.code != 0 && !self.is_by_shutdown()
    }

    /// Whether the container ran when the machine went down, which is no failure.
    pub fn is_by_shutdown(&self) -> bool {
        self.code == 255 && self.message == UNKNOWN
    }
}

impl ContainerFacts {
    pub fn running_since(&self) -> Option<ObservedTime> {
        match self.state {
            ContainerState::Running(since) => since,
            _ => None,
        }
    }

    fn of(status: &ContainerStatus, sandbox: Option<&Sandbox>) -> Self {
        let counts = |ended: &&ContainerStateTerminated| sandbox.is_none_or(|sandbox| sandbox.saw(ended));
        let exit = |ended: &ContainerStateTerminated| Exit {
            code: ended.exit_code,
            message: kept(ended.message.as_ref().filter(|_| !is_unknown(ended)).or(ended.reason.as_ref()))
                .trim()
                .to_owned(),
        };
        let state = status.state.clone().unwrap_or_default();
        let state = if let Some(running) = state.running {
            ContainerState::Running(running.started_at.map(|time| time.0.into()))
        } else if let Some(ended) = state.terminated.as_ref().filter(counts) {
            ContainerState::Ended(exit(ended))
        } else {
            let waiting = state.waiting.unwrap_or_default();
            ContainerState::Waiting { reason: kept(waiting.reason.as_ref()), message: kept(waiting.message.as_ref()) }
        };
        let last = status.last_state.as_ref().and_then(|last| last.terminated.as_ref()).filter(counts);
        Self {
            name: Interned::from(&status.name),
            state,
            last_failure: last.map(exit).filter(|exit| exit.code != 0),
            ready: status.ready,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
