//! Mistakes in a pod's own spec: GPUs that it uses without requesting them or by the resource of early Kubernetes, NVIDIA's
//! runtime that it does not select, runtime handlers that its node lacks, and driver files that it mounts from its host.

use k8s_openapi::api::core::v1::Event;

use crate::{
    finding::{Mistake, SANDBOX_FAILED, START_GRACE, Verdict},
    fleet::Fleet,
    pending::{LEGACY_RESOURCE, PendingPod},
};

/// Returns the message for a pod on a node where NVIDIA's runtime is not the default. The pod would start without a
/// driver.
pub fn runtime_class_not_named(pod: &PendingPod, fleet: &Fleet<'_>) -> Option<String> {
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

/// Driver installers and device plugins mount such paths on purpose, and are exempt.
pub fn host_driver_mounted(pod: &PendingPod) -> Option<String> {
    let mount = pod.driver_mounts.first().filter(|_| !pod.equipment)?;
    let more = match pod.driver_mounts.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let privileged = if pod.driver_mounts.iter().any(|mount| mount.privileged) { ", privileged," } else { "" };
    Some(format!(
        "container {}{privileged} mounts {}{more} from its host: it has access to every GPU of the node, including those of \
         other pods, and breaks when the driver is updated; request limits: {{nvidia.com/gpu: 1}} and remove these volumes and \
         privileged: the driver and the devices are then injected into the container",
        mount.container, mount.path
    ))
}

pub fn legacy_resource(pod: &PendingPod) -> Option<String> {
    let container = pod.containers.iter().find(|container| container.requests.contains_key(LEGACY_RESOURCE))?;
    let count = container.requests.get(LEGACY_RESOURCE)?;
    Some(format!(
        "container {} requests {LEGACY_RESOURCE}, which nodes no longer offer; request limits: {{nvidia.com/gpu: {count}}} instead, \
         and remove volumes of driver libraries",
        container.name
    ))
}

/// Returns the message for a pod that selects GPUs only through `NVIDIA_VISIBLE_DEVICES`. Exempt are pods with a
/// container that requests GPUs or with resource claims, and privileged pods: monitoring agents do so on purpose.
pub fn gpu_not_requested(pod: &PendingPod) -> Option<String> {
    let requests = pod.containers.iter().any(|container| !container.requests.is_empty());
    if requests || pod.claims || pod.equipment || pod.containers.iter().any(|container| container.privileged) {
        return None;
    }
    let (container, devices) = pod.containers.iter().find_map(|container| {
        let devices = container.visible_devices.as_deref().filter(|devices| wants_gpus(devices))?;
        Some((container, devices))
    })?;
    Some(format!(
        "container {} sets NVIDIA_VISIBLE_DEVICES={} but requests no GPU: it gets no GPU, or GPUs that other pods use; \
         request limits: {{nvidia.com/gpu: 1}} and remove the variable",
        container.name,
        devices.chars().take(64).collect::<String>()
    ))
}

/// `none` and `void` mean that the container needs no GPU.
fn wants_gpus(devices: &str) -> bool {
    !matches!(devices.trim(), "" | "none" | "void")
}

/// Checks a pod that is assigned to a node. Only kubelet's Event contains the container runtime's error.
pub fn missing_runtime_handler(pod: &PendingPod, events: Option<&[Event]>) -> Verdict {
    let Some(class) = pod.runtime_class.as_deref().filter(|class| class.starts_with("nvidia")) else {
        return Verdict::NoMistake;
    };
    let failed = events.into_iter().flatten().filter(|event| event.reason.as_deref() == Some(SANDBOX_FAILED));
    let Some(handler) = failed.filter_map(|event| event.message.as_deref()).find_map(unknown_handler) else {
        return Verdict::Unknown { grace: START_GRACE };
    };
    let node = pod.node.as_deref().unwrap_or_default();
    Verdict::Mistake(
        Mistake::RuntimeHandlerMissing,
        format!(
            "RuntimeClass {class} uses the handler {handler:?}, which is not configured in the container runtime of node \
             {node}; remove runtimeClassName if GPUs are injected by CDI, which needs no RuntimeClass; otherwise check the \
             progress of the node's toolkit: kubectl get gpunode {node} -o wide"
        ),
    )
}

/// Returns the handler that a container runtime reports as missing.
fn unknown_handler(message: &str) -> Option<&str> {
    // containerd
    let containerd = || message.split_once("no runtime for \"")?.1.split_once("\" is configured");
    // CRI-O; general knowledge, unverified.
    let crio = || message.split_once("failed to find runtime handler ")?.1.split_once(' ');
    Some(containerd().or_else(crio)?.0).filter(|handler| handler.starts_with("nvidia"))
}
