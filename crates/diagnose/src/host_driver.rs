//! Driver libraries and device nodes that a pod mounts directly from its host.

use crate::pending::PendingPod;

/// Returns the message for a pod that mounts such a path. Driver installers and device plugins do so on purpose, and are exempt.
pub fn find(pod: &PendingPod) -> Option<String> {
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
