//! GPUs that a pod helps itself to by an environment variable.

use super::PendingPod;

/// What to say of a pod that wants GPUs by `NVIDIA_VISIBLE_DEVICES` alone. Silent where another container of it asks for
/// them, where it has claims, and where it may do as it likes: monitors of all GPUs are made so on purpose.
pub fn find(pod: &PendingPod) -> Option<String> {
    let asks = pod.containers.iter().any(|container| !container.asks.is_empty());
    if asks || pod.claims || pod.equipment || pod.containers.iter().any(|container| container.privileged) {
        return None;
    }
    let (container, devices) = pod.containers.iter().find_map(|container| {
        let devices = container.visible_devices.as_deref().filter(|devices| wants_gpus(devices))?;
        Some((container, devices))
    })?;
    Some(format!(
        "container {} sets NVIDIA_VISIBLE_DEVICES={} and asks for no GPU: it gets none, or those that other pods use; write \
         limits: {{nvidia.com/gpu: 1}} and leave the variable out",
        container.name,
        devices.chars().take(64).collect::<String>()
    ))
}

/// `none` and `void` are how a container says that it wants none.
fn wants_gpus(devices: &str) -> bool {
    !matches!(devices.trim(), "" | "none" | "void")
}
