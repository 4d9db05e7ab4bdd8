//! The pods of a node that matter before its driver is replaced. They are listed when they are needed, because no mirror holds them,
//! or because a mirror may be behind.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_common::quantity;
use gpu_operator_crd::{keys, policy::Stage};
use k8s_openapi::api::core::v1::{ContainerStatus, NodeSelectorTerm, Pod};
use kube::ResourceExt;

use super::pod::{PodFacts, Role};

/// The pods of a node that use GPUs or offer them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuPods {
    /// The pods that use a GPU or are about to, `namespace/name`.
    pub users: Vec<String>,
    /// Those of them that run a container: only these can have the driver open.
    pub holders: Vec<String>,
    /// This operator's pods of the device plugin and of MPS. As long as one exists, further pods may get GPUs.
    pub plugins: Vec<PodFacts>,
    /// All other pods, by UID. They may have the driver open nevertheless.
    pub bystanders: BTreeMap<String, Bystander>,
}

/// A pod that does not request a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bystander {
    /// A pod of this operator.
    Own,
    /// A pod, `namespace/name`, whose DaemonSet removes it from nodes with the label [`keys::CLIENTS`].
    GivesWay(String),
    /// Any other pod, `namespace/name`.
    Stays(String),
}

impl GpuPods {
    /// Returns those among the pods of a node. This operator's own are in `namespace`.
    #[must_use]
    pub fn of(pods: &[Pod], requests: &GpuRequests, namespace: &str) -> Self {
        let (users, others): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| uses_gpu(pod, requests));
        let own = |pod: &Pod| PodFacts::of(pod).filter(|_| pod.namespace().as_deref() == Some(namespace));
        let bystander = |pod: &Pod| match own(pod) {
            Some(_) => Bystander::Own,
            None if gives_way(pod) => Bystander::GivesWay(name(pod)),
            None => Bystander::Stays(name(pod)),
        };
        Self {
            users: names(users.iter().copied()),
            holders: names(users.into_iter().filter(|pod| runs_a_container(pod))),
            plugins: pods.iter().filter_map(own).filter(offers_gpus).collect(),
            bystanders: others.into_iter().filter_map(|pod| Some((pod.uid()?, bystander(pod)))).collect(),
        }
    }
}

/// Returns whether the DaemonSet of a pod removes it from a node with the label [`keys::CLIENTS`]: its controller deletes pods from
/// nodes that their required node affinity excludes.
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

/// Returns whether kubelet gets GPUs by a pod of this operator.
#[must_use]
pub fn offers_gpus(pod: &PodFacts) -> bool {
    matches!(pod.role, Role::Operand(Stage::DevicePlugin | Stage::Mps))
}

fn names<'p>(pods: impl Iterator<Item = &'p Pod>) -> Vec<String> {
    let mut names: Vec<_> = pods.map(name).collect();
    names.sort();
    names
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

/// Returns whether a container of a pod runs. A container that has not started has no device open.
fn runs_a_container(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let main = status.and_then(|status| status.container_statuses.as_ref());
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let runs = |status: &ContainerStatus| status.state.as_ref().is_some_and(|state| state.running.is_some());
    main.into_iter().chain(init).flatten().any(runs)
}

/// Returns whether a pod has, or is about to have, a GPU of its node: it requests one and has not ended.
#[must_use]
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
