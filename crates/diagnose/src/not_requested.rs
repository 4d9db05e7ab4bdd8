//! GPUs that a pod uses through an environment variable, without requesting them.

use crate::pending::PendingPod;

/// Returns the message for a pod that selects GPUs only through `NVIDIA_VISIBLE_DEVICES`. Returns `None` if another container
/// of the pod requests GPUs, if the pod has resource claims, or if it is privileged: monitoring agents do so on purpose.
pub fn find(pod: &PendingPod) -> Option<String> {
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
