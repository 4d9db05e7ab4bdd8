//! Pods on a node: what the model knows of them, and their statuses as kubelet reports them.

use gpu_operator_crd::keys;
use gpu_operator_plan::world::{ContainerFacts, ContainerState, Exit, PodFacts, Role};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec},
        core::v1::{Container, Pod, PodSpec, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use kube::ResourceExt;
use serde_json::Value;
use test_support::sim::pod_json;

/// A pod on a node.
#[derive(Clone, Debug)]
pub(super) struct PlacedPod {
    pub id: PodId,
    /// Whether it is being deleted.
    pub deleting: bool,
    pub kind: Kind,
    pub spec: PodSpec,
    /// When the node first saw it.
    since: Timestamp,
}

#[derive(Clone, Debug)]
pub(super) struct PodId {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// A pod of the operator, as it is when it starts. The model names it by its stage and node.
    Own(Box<PodFacts>),
    Detector,
    /// A pod of this third-party DaemonSet.
    OfDaemonSet(String),
    Other,
}

impl PlacedPod {
    /// Reads a pod; returns `None` if it has ended.
    pub fn of(pod: Pod) -> Option<Self> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let id = PodId { uid: pod.uid()?, namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() };
        let since = whole_seconds(Timestamp::now());
        let owner = pod.owner_references().iter().find(|owner| owner.kind == "DaemonSet");
        let kind = match (PodFacts::of(&pod), owner) {
            (Some(facts), _) => Kind::Own(Box::new(at_start(facts, pod.spec.as_ref()?, since))),
            _ if keys::are_of(pod.labels(), keys::DETECTOR_NAME) => Kind::Detector,
            (None, Some(owner)) => Kind::OfDaemonSet(owner.name.clone()),
            (None, None) => Kind::Other,
        };
        Some(Self { id, deleting: pod.metadata.deletion_timestamp.is_some(), kind, spec: pod.spec?, since })
    }

    /// Returns whether it is a user's pod that requests a GPU.
    pub fn uses_gpu(&self) -> bool {
        let requests_gpu = |container: &Container| {
            let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
            limits.is_some_and(|limits| limits.keys().any(|name| name.starts_with(keys::RESOURCES)))
        };
        !matches!(self.kind, Kind::Own(_)) && self.spec.containers.iter().any(requests_gpu)
    }

    /// Returns its third-party DaemonSet, as far as it shows.
    pub fn third_party(&self) -> Option<DaemonSet> {
        let Kind::OfDaemonSet(name) = &self.kind else { return None };
        let template = PodTemplateSpec { spec: Some(self.spec.clone()), ..PodTemplateSpec::default() };
        let (name, namespace) = (Some(name.clone()), Some(self.id.namespace.clone()));
        Some(DaemonSet {
            metadata: ObjectMeta { name, namespace, ..ObjectMeta::default() },
            spec: Some(DaemonSetSpec { template, ..DaemonSetSpec::default() }),
            ..DaemonSet::default()
        })
    }

    /// Returns its status, for what the model knows of it. A pod that the model does not know runs.
    pub fn status(&self, modelled: Option<&PodFacts>) -> Value {
        let Some(pod) = modelled else {
            let running = ContainerState::Running(Some(self.since.into()));
            let containers: Vec<_> =
                self.spec.containers.iter().map(|main| container(main, running.clone(), true)).collect();
            return pod_json::status(&self.steps(&[], &containers), &containers, Some(self.since), None);
        };
        let since = pod.sandbox_since.map(Timestamp::from);
        pod_json::status(&self.steps(&pod.init, &pod.containers), &pod.containers, since, pod.end.as_ref())
    }

    /// Returns the states of all init containers. The model names only those whose state matters: the others before them have ended, and
    /// those after them wait. Without such a name a pod waits at its gate, or has no step left.
    fn steps(&self, known: &[ContainerFacts], main: &[ContainerFacts]) -> Vec<ContainerFacts> {
        let steps = self.spec.init_containers.as_deref().unwrap_or_default();
        let is_new = |main: &ContainerFacts| match &main.state {
            ContainerState::Waiting { reason, .. } => main.last_failure.is_none() && is_initializing(reason),
            ContainerState::Running(_) | ContainerState::Ended(_) => false,
        };
        let is_gate =
            |step: &Container| step.args.as_ref().and_then(|args| args.first()).is_some_and(|verb| verb == "wait");
        let position = |named: &ContainerFacts| steps.iter().position(|step| named.name == *step.name);
        let current = match known.iter().filter_map(position).max() {
            _ if !main.iter().all(is_new) => steps.len(),
            Some(named) => named,
            None if known.is_empty() && steps.first().is_some_and(is_gate) => 0,
            None => steps.len(),
        };
        let state = |index: usize| match index {
            _ if index < current => ContainerState::Ended(Exit { code: 0, message: "Completed".into() }),
            _ if index == current => ContainerState::Running(Some(self.since.into())),
            _ => initializing(),
        };
        let of = |(index, step): (usize, &Container)| {
            let named = known.iter().find(|known| known.name == *step.name).cloned();
            named.unwrap_or_else(|| container(step, state(index), index < current))
        };
        steps.iter().enumerate().map(of).collect()
    }
}

/// Returns the time without fractions, as the API stores it.
pub(super) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Returns the facts of a pod that kubelet has just seen.
fn at_start(facts: PodFacts, spec: &PodSpec, now: Timestamp) -> PodFacts {
    let name = match facts.role {
        Role::Operand(stage) => format!("{}@{}", stage.as_str(), facts.node),
        Role::Probe => format!("{}@{}", keys::PROBE_NAME, facts.node),
        Role::Validation | Role::Preflight => facts.name.clone(),
    };
    let mains = spec.containers.iter().filter(|_| facts.role != Role::Validation);
    let containers = mains.map(|main| container(main, initializing(), false)).collect();
    PodFacts { name, sandbox_since: Some(now.into()), init: Vec::new(), containers, ..facts }
}

fn container(of: &Container, state: ContainerState, ready: bool) -> ContainerFacts {
    ContainerFacts { name: of.name.as_str().into(), state, last_failure: None, ready }
}

fn initializing() -> ContainerState {
    ContainerState::Waiting { reason: "PodInitializing".into(), message: String::new() }
}

/// After a reboot there is no reason until kubelet has started the pod again.
fn is_initializing(reason: &str) -> bool {
    ["", "PodInitializing"].contains(&reason)
}
