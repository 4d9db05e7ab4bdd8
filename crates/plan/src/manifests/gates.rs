//! The gate of every stage after the driver: an init container that waits for the driver.

use gpu_operator_crd::report::CONTAINER_ROOT;
use k8s_openapi::api::core::v1::{Container, Volume};

use crate::{
    desired::driver::choice::DriverChoice,
    manifests::pod::{Mode, PodInput, host_path, mount, own_container},
};

/// The file that the driver's container locks while it runs.
pub const DRIVER_PID_FILE: &str = "/run/nvidia/nvidia-driver.pid";

/// Returns the gate, which waits until the desired driver is loaded and its libraries are installed.
pub fn driver_gate(input: &PodInput<'_>) -> Container {
    let root = input.key.driver.root();
    let mut args = vec!["wait", "driver", "--host-root", "/host", "--driver-root", root];
    if let Some(version) = input.key.driver.version() {
        args.extend(["--version", version]);
    }
    if matches!(input.key.driver, DriverChoice::Container { .. }) {
        args.extend(["--pid-file", DRIVER_PID_FILE]);
    }
    let mounts = vec![
        mount("sys", "/host/sys", Mode::ReadOnly),
        mount("driver", format!("/host{}", driver_mount(root)).trim_end_matches('/'), Mode::Follow),
    ];
    own_container(input.settings, "wait-for-driver", &args, mounts)
}

/// Returns the volumes of [`driver_gate`].
pub fn driver_gate_volumes(input: &PodInput<'_>) -> Vec<Volume> {
    vec![
        host_path("sys", "/sys", None),
        host_path("driver", driver_mount(input.key.driver.root()), Some("DirectoryOrCreate")),
    ]
}

/// Returns the folder to mount to inspect a driver root: the parent of a container's root, because that root is mounted
/// and unmounted. For a host's own driver the whole root is mounted: the paths of libraries are in the dynamic linker's
/// files in /etc, and links lead to /opt, /nix and elsewhere. The gate reads only files that all users of the host may
/// read.
fn driver_mount(root: &str) -> &str {
    match root {
        CONTAINER_ROOT => "/run/nvidia",
        other => other,
    }
}
