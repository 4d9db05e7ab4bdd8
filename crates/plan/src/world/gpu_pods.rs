//! The pods of a node that matter before its driver is replaced. They are listed on demand: no mirror holds them, or a mirror may be
//! behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpu_operator_common::quantity;
use gpu_operator_crd::{keys, policy::Stage};
use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, NodeSelectorTerm, Pod, PodSpec, Volume},
    jiff::Timestamp,
};
use kube::ResourceExt;

use super::pod::{PodFacts, Role};

/// The annotation of the pods by which kubelet shows its static pods.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The maximum number of labels that are kept of a pod. The others are ignored, so that no selector matches them.
const MAX_LABELS: usize = 128;
const MAX_FINALIZERS: usize = 8;
/// The API server's default.
const GRACE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuPods {
    /// The pods that use a GPU or are about to, by name.
    pub users: Vec<GpuPod>,
    /// This operator's pods of the device plugin and of MPS. As long as one exists, further pods may get GPUs.
    pub plugins: Vec<PodFacts>,
    /// All other pods, by UID. They may have the driver open nevertheless.
    pub bystanders: BTreeMap<String, Bystander>,
}

/// A pod that uses a GPU, or is about to use one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GpuPod {
    /// `namespace/name`.
    pub name: String,
    pub uid: String,
    /// Whether it runs a container. Otherwise it cannot have the driver open.
    pub runs: bool,
    pub owner: PodOwner,
    /// Whether it has a volume whose data is deleted with it.
    pub has_empty_dir: bool,
    pub labels: BTreeMap<String, String>,
    /// If it has been deleted, when it should have been gone.
    pub gone_by: Option<Timestamp>,
    /// What keeps it after its containers have ended.
    pub finalizers: Vec<String>,
    /// How long its containers may take to end.
    pub grace: Duration,
}

/// The controller that creates a deleted pod again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PodOwner {
    /// A controller that creates it on any node, such as that of ReplicaSets or Jobs.
    #[default]
    Controller,
    /// The controller of DaemonSets, on the same node, cordoned or not.
    DaemonSet,
    /// Kubelet: the pod is a static one, which the API server cannot evict.
    Kubelet,
    Operator,
    /// No controller.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bystander {
    Own,
    /// A pod, `namespace/name`, whose DaemonSet removes it from nodes with the label [`keys::CLIENTS`].
    GivesWay(String),
    /// Any other pod, `namespace/name`.
    Stays(String),
}

impl GpuPods {
    /// Classifies the pods of a node. This operator's own are in `namespace`.
    pub fn of(pods: &[Pod], requests: &GpuRequests, namespace: &str) -> Self {
        let (users, others): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| uses_gpu(pod, requests));
        let own = |pod: &Pod| PodFacts::of(pod).filter(|_| pod.namespace().as_deref() == Some(namespace));
        let bystander = |pod: &Pod| match own(pod) {
            Some(_) => Bystander::Own,
            None if gives_way(pod) => Bystander::GivesWay(name(pod)),
            None => Bystander::Stays(name(pod)),
        };
        let mut users: Vec<_> =
            users.into_iter().map(|pod| GpuPod { owner: owner(pod, own(pod).is_some()), ..gpu_pod(pod) }).collect();
        users.sort_by(|one, other| one.name.cmp(&other.name));
        Self {
            users,
            plugins: pods.iter().filter_map(own).filter(serves_gpus).collect(),
            bystanders: others.into_iter().filter_map(|pod| Some((pod.uid()?, bystander(pod)))).collect(),
        }
    }

    pub fn add(&mut self, page: Self) {
        self.users.extend(page.users);
        self.users.sort_by(|one, other| one.name.cmp(&other.name));
        self.plugins.extend(page.plugins);
        self.bystanders.extend(page.bystanders);
    }

    /// Returns the users that run a container: only these can have the driver open.
    pub fn holders(&self) -> impl Iterator<Item = &GpuPod> {
        self.users.iter().filter(|pod| pod.runs)
    }

    /// Whether a user may have the driver open.
    pub fn use_driver(&self) -> bool {
        self.holders().next().is_some()
    }
}

fn gpu_pod(pod: &Pod) -> GpuPod {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    GpuPod {
        name: name(pod),
        uid: pod.uid().unwrap_or_default(),
        runs: runs_a_container(pod),
        owner: PodOwner::default(),
        has_empty_dir: volumes.into_iter().flatten().any(|volume| volume.empty_dir.is_some()),
        labels: pod.labels().iter().take(MAX_LABELS).map(|(key, value)| (key.clone(), value.clone())).collect(),
        // The API server adds the grace period to it.
        gone_by: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
        finalizers: pod.finalizers().iter().take(MAX_FINALIZERS).cloned().collect(),
        grace: pod
            .spec
            .as_ref()
            .and_then(|spec| spec.termination_grace_period_seconds)
            .map_or(GRACE, |seconds| Duration::from_secs(seconds.try_into().unwrap_or_default())),
    }
}

/// Drops the parts of a pod that are not read here, which are most of it.
pub fn without_details(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|key, _| key == MIRROR || key == keys::APPLIED);
    }
    let container = |container: Container| Container {
        name: container.name,
        resources: container.resources,
        ..Container::default()
    };
    let volume =
        |volumes: Vec<Volume>| volumes.into_iter().find(|volume| volume.empty_dir.is_some()).into_iter().collect();
    pod.spec = pod.spec.map(|spec| PodSpec {
        affinity: spec.affinity,
        containers: spec.containers.into_iter().map(container).collect(),
        init_containers: spec.init_containers.map(|containers| containers.into_iter().map(container).collect()),
        node_name: spec.node_name,
        node_selector: spec.node_selector,
        resource_claims: spec.resource_claims.map(|claims| claims.into_iter().take(1).collect()),
        termination_grace_period_seconds: spec.termination_grace_period_seconds,
        volumes: spec.volumes.map(volume),
        ..PodSpec::default()
    });
    pod
}

fn owner(pod: &Pod, is_own: bool) -> PodOwner {
    let controller = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
    match controller.map(|owner| owner.kind.as_str()) {
        _ if pod.annotations().contains_key(MIRROR) => PodOwner::Kubelet,
        _ if is_own => PodOwner::Operator,
        Some("DaemonSet") => PodOwner::DaemonSet,
        Some(_) => PodOwner::Controller,
        None => PodOwner::None,
    }
}

/// Whether a pod's DaemonSet removes it from nodes with the label [`keys::CLIENTS`]: required node affinity.
fn gives_way(pod: &Pod) -> bool {
    let is_of_set =
        pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet" && owner.controller == Some(true));
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required = affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    let excludes = |term: &NodeSelectorTerm| {
        term.match_expressions.iter().flatten().any(|expression| {
            let values = expression.values.as_deref().unwrap_or_default();
            expression.key == keys::CLIENTS
                && match expression.operator.as_str() {
                    "NotIn" => values.iter().any(|value| value == keys::CLIENTS_PAUSED),
                    operator => operator == "DoesNotExist",
                }
        })
    };
    is_of_set && required.is_some_and(|required| required.node_selector_terms.iter().all(excludes))
}

/// Whether the pod gives kubelet GPUs: device plugin or MPS.
pub fn serves_gpus(pod: &PodFacts) -> bool {
    matches!(pod.role, Role::Operand(Stage::DevicePlugin | Stage::Mps))
}

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

/// How pods of a cluster request GPUs, in addition to NVIDIA's resource names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuRequests {
    /// Resource names of third-party device plugins, as listed in policies.
    pub resources: BTreeSet<String>,
    /// Whether a DRA driver allocates GPUs, so that any claim may be for a GPU.
    pub claims: bool,
}

fn runs_a_container(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let main = status.and_then(|status| status.container_statuses.as_ref());
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let runs = |status: &ContainerStatus| status.state.as_ref().is_some_and(|state| state.running.is_some());
    main.into_iter().chain(init).flatten().any(runs)
}

/// Whether a pod requests a GPU of its node and has not ended.
pub fn uses_gpu(pod: &Pod, requests: &GpuRequests) -> bool {
    let ended = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
    let Some(spec) = pod.spec.as_ref().filter(|_| !ended) else {
        return false;
    };
    if requests.claims && spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return true;
    }
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(|container| {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        limits.is_some_and(|limits| {
            // MIG devices (`nvidia.com/mig-…`) and shared GPUs (`nvidia.com/gpu.shared`) also keep the driver in use.
            let is_gpu = |name: &String| name.starts_with("nvidia.com/") || requests.resources.contains(name);
            limits.iter().any(|(name, quantity)| is_gpu(name) && quantity::count(&quantity.0) != Ok(0))
        })
    })
}
