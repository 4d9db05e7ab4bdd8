//! Pods that get GPUs by NVIDIA's runtime alone, and do not ask to be run by it.

use super::{Fleet, PendingPod};

/// What to say of a pod that is bound to a node where NVIDIA's runtime is not everybody's. It would start, without a driver.
pub fn find(pod: &PendingPod, fleet: &Fleet<'_>) -> Option<String> {
    if pod.runtime_class.is_some() || pod.claims || pod.asks().is_empty() {
        return None;
    }
    let node = pod.node.as_deref()?;
    let class = fleet.hosts.get(node)?.runtime_to_name()?;
    Some(format!(
        "containers get their GPUs by NVIDIA's runtime on node {node}, and this pod is run by another one, so that it finds no \
         driver (libcuda.so.1 is missing, NVML does not start); write runtimeClassName: {class}, or have the policy say \
         toolkit.setAsDefault: true"
    ))
}
