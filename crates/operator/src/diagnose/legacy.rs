//! The GPU resource of early Kubernetes.

use super::PendingPod;

/// The resource name of GPUs before Kubernetes 1.10. No kubelet offers it any more.
pub const RESOURCE: &str = "alpha.kubernetes.io/nvidia-gpu";

/// Returns the message for a pod that requests it.
pub fn find(pod: &PendingPod) -> Option<String> {
    let container = pod.containers.iter().find(|container| container.asks.contains_key(RESOURCE))?;
    let count = container.asks.get(RESOURCE)?;
    Some(format!(
        "container {} requests {RESOURCE}, which nodes no longer offer; request limits: {{nvidia.com/gpu: {count}}} instead, \
         and remove volumes of driver libraries",
        container.name
    ))
}
