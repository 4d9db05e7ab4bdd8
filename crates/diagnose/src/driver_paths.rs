//! Paths of a host that belong to its driver.

/// Directories of the driver, on systems where pods commonly mount them.
const FOLDERS: [&str; 5] = [
    "/home/kubernetes/bin/nvidia",
    "/var/lib/nvidia",
    "/var/lib/nvidia-docker",
    "/usr/local/nvidia",
    "/run/nvidia/driver",
];

/// Directories in which the driver's own directory is named `nvidia…` and its libraries lie among those of other packages.
const LIBRARIES: [&str; 5] =
    ["/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];

/// IMEX channels are deliberately passed to pods through this mount.
const IMEX: &str = "/dev/nvidia-caps-imex-channels";

/// The default directory of the container toolkit, which is not part of the driver.
const TOOLKIT: &str = "/usr/local/nvidia/toolkit";

/// Returns whether a path of a host is part of the driver.
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
