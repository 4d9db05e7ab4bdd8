//! The gate that every stage after the driver has: an init container that waits for the driver.

use gpu_operator_crd::report::CONTAINER_ROOT;
use k8s_openapi::api::core::v1::{Container, Volume};

use crate::{
    desired::driver::choice::DriverChoice,
    manifests::pod::{Mode, PodInput, host_path, mount, own_container},
};

/// The file that the container locks while it runs.
pub const DRIVER_PID_FILE: &str = "/run/nvidia/nvidia-driver.pid";

/// The gate of the later stages: waits until the wanted driver is loaded and its libraries are in place.
#[must_use]
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

/// The volumes of [`driver_gate`].
#[must_use]
pub fn driver_gate_volumes(input: &PodInput<'_>) -> Vec<Volume> {
    vec![
        host_path("sys", "/sys", None),
        host_path("driver", driver_mount(input.key.driver.root()), Some("DirectoryOrCreate")),
    ]
}

/// The folder to mount so that a driver root can be looked into: the one above a container's root, which comes and
/// goes as a mount. Of a host's own root it is all: where libraries are stands in its dynamic linker's files in /etc, and the
/// links there lead to /opt, /nix and anywhere. The gate reads what every user of the host may read.
fn driver_mount(root: &str) -> &str {
    match root {
        CONTAINER_ROOT => "/run/nvidia",
        other => other,
    }
}
