//! Pods that can only get GPUs through NVIDIA's runtime, but do not select it.

use crate::{fleet::Fleet, pending::PendingPod};

/// Returns the message for a pod that is assigned to a node where NVIDIA's runtime is not the default. The pod would start
/// without a driver.
pub fn find(pod: &PendingPod, fleet: &Fleet<'_>) -> Option<String> {
    if pod.runtime_class.is_some() || pod.claims || pod.requests().is_empty() {
        return None;
    }
    let node = pod.node.as_deref()?;
    let host = fleet.hosts.get(node)?;
    let class = host.class_to_name()?;
    let or = if host.keeps_default_runtime() { ", or remove toolkit.setAsDefault: false from the policy" } else { "" };
    Some(format!(
        "node {node} injects GPUs through NVIDIA's runtime, but this pod sets no runtimeClassName, so another runtime runs it \
         and it finds no driver (libcuda.so.1 is missing, NVML does not start); set runtimeClassName: {class}{or}"
    ))
}
