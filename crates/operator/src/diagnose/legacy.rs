//! The GPU resource of early Kubernetes.

use super::PendingPod;

/// What GPUs were asked for by before Kubernetes 1.10; no kubelet offers it any more.
pub const RESOURCE: &str = "alpha.kubernetes.io/nvidia-gpu";

/// What to say of a pod that asks for it.
pub fn find(pod: &PendingPod) -> Option<String> {
    let container = pod.containers.iter().find(|container| container.asks.contains_key(RESOURCE))?;
    let count = container.asks.get(RESOURCE)?;
    Some(format!(
        "container {} asks for {RESOURCE}, which no node offers any more; write limits: {{nvidia.com/gpu: {count}}} instead, \
         and leave out volumes of driver libraries",
        container.name
    ))
}
