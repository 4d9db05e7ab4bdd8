//! The pods of a node that matter before its driver is replaced. They are listed when they are needed, because no mirror holds them,
//! or because a mirror may be behind.

use std::collections::BTreeSet;

use gpu_operator_common::{interned::Interner, quantity};
use gpu_operator_crd::policy::Stage;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
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
}

impl GpuPods {
    /// Returns those among the pods of a node. This operator's own are in `namespace`.
    #[must_use]
    pub fn of(pods: &[Pod], asks: &GpuAsks, namespace: &str) -> Self {
        let users = || pods.iter().filter(|pod| uses_gpu(pod, asks));
        let own = pods.iter().filter(|pod| pod.namespace().as_deref() == Some(namespace));
        let own = own.filter_map(|pod| PodFacts::of(pod, &Interner::default()));
        Self {
            users: names(users()),
            holders: names(users().filter(|pod| runs_a_container(pod))),
            plugins: own.filter(offers_gpus).collect(),
        }
    }
}

/// Returns whether kubelet gets GPUs by a pod of this operator.
#[must_use]
pub fn offers_gpus(pod: &PodFacts) -> bool {
    matches!(pod.role, Role::Operand(Stage::DevicePlugin | Stage::Mps))
}

fn names<'p>(pods: impl Iterator<Item = &'p Pod>) -> Vec<String> {
    let mut names: Vec<_> =
        pods.map(|pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())).collect();
    names.sort();
    names
}

/// How pods of a cluster request GPUs, in addition to NVIDIA's resource names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuAsks {
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
            // MIG devices (`nvidia.com/mig-…`) and shared GPUs (`nvidia.com/gpu.shared`) also keep the driver in use.
            let is_gpu = |name: &String| name.starts_with("nvidia.com/") || asks.resources.contains(name);
            limits.iter().any(|(name, quantity)| is_gpu(name) && quantity::count(&quantity.0) != Ok(0))
        })
    })
}
