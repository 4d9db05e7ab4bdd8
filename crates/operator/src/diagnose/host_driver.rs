//! Driver libraries and device nodes that a pod takes from its host by itself.

use super::PendingPod;

/// Folders of the driver, on the systems where pods have been made to mount them.
const FOLDERS: [&str; 5] = [
    "/home/kubernetes/bin/nvidia",
    "/var/lib/nvidia",
    "/var/lib/nvidia-docker",
    "/usr/local/nvidia",
    "/run/nvidia/driver",
];
/// Folders in which a driver's own folder is called `nvidia…`, and libraries lie beside everybody's.
const LIBRARIES: [&str; 5] =
    ["/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
/// IMEX channels are given to pods by this mount, on purpose.
const IMEX: &str = "/dev/nvidia-caps-imex-channels";
/// Where the container toolkit lies by default, which is no driver.
const TOOLKIT: &str = "/usr/local/nvidia/toolkit";

/// Whether a path of a host is something of the driver.
pub fn is_driver(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let within = |folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if within(IMEX) || within(TOOLKIT) {
        return false;
    }
    let beside = |folder: &str| {
        let rest = path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
        rest.is_some_and(|rest| ["nvidia", "libcuda.so", "libnvidia-"].iter().any(|driver| rest.starts_with(driver)))
    };
    path.starts_with("/dev/nvidia")
        || FOLDERS.iter().any(|folder| within(folder))
        || LIBRARIES.iter().any(|folder| beside(folder))
}

/// What to say of a pod that takes such a path. Drivers' installers and device plugins do so on purpose.
pub fn find(pod: &PendingPod) -> Option<String> {
    let mount = pod.driver_mounts.first().filter(|_| !pod.equipment)?;
    let more = match pod.driver_mounts.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let privileged = if pod.driver_mounts.iter().any(|mount| mount.privileged) { ", privileged," } else { "" };
    Some(format!(
        "container {}{privileged} mounts {}{more} of its host: it sees every GPU of the node, also those of other pods, and \
         breaks when the driver moves; write limits: {{nvidia.com/gpu: 1}} and leave out these volumes and privileged: driver \
         and devices are then put into the container",
        mount.container, mount.path
    ))
}
