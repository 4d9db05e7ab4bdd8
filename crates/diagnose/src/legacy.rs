//! The GPU resource of early Kubernetes.

use crate::pending::{LEGACY_RESOURCE, PendingPod};

/// Returns the message for a pod that requests it.
pub fn find(pod: &PendingPod) -> Option<String> {
    let container = pod.containers.iter().find(|container| container.requests.contains_key(LEGACY_RESOURCE))?;
    let count = container.requests.get(LEGACY_RESOURCE)?;
    Some(format!(
        "container {} requests {LEGACY_RESOURCE}, which nodes no longer offer; request limits: {{nvidia.com/gpu: {count}}} instead, \
         and remove volumes of driver libraries",
        container.name
    ))
}
