//! The init container of the plugin's pod that applies the MIG layout, so that whenever the plugin starts, including
//! after a reboot, the GPUs have the layout. If they already have it, nothing changes.

use gpu_operator_common::mig_layout::MigLayout;
use gpu_operator_crd::report::CONTAINER_ROOT;
use k8s_openapi::api::core::v1::{Container, Volume};

use crate::{
    container_names::DIVIDER,
    manifests::pod::{Mode, PodInput, host_path, mount, own_container, privileged_root},
};

/// Returns the container. The pod must share the host's process namespace, or NVML would not report which processes use
/// the GPUs (unverified).
pub fn container(input: &PodInput<'_>, layout: &MigLayout) -> Container {
    let root = input.key.driver.root();
    let layout = serde_json::json!(layout).to_string();
    // The library creates device nodes. Those of a driver container are in its root; otherwise they are in the host's /dev. A driver
    // root that is not a complete file system is used from the host's root, where links lead anywhere.
    let mounts = if root == CONTAINER_ROOT {
        vec![
            mount("sys", "/host/sys", Mode::ReadOnly),
            mount("proc", "/host/proc", Mode::ReadOnly),
            mount("driver-root", &format!("/host{root}"), Mode::Writable),
        ]
    } else {
        vec![mount("host", "/host", Mode::ReadOnly), mount("dev", "/host/dev", Mode::Writable)]
    };
    let args = ["mig", "--host-root", "/host", "--driver-root", root, "--layout", &layout];
    Container {
        // Privileged: NVML opens the GPUs' device nodes, only root may change the layout, and SYS_CHROOT is needed to
        // load the library in the driver's root.
        security_context: Some(privileged_root()),
        ..own_container(input.settings, DIVIDER, &args, mounts)
    }
}

/// Returns the volumes that it needs in addition to those of the plugin.
pub fn volumes(input: &PodInput<'_>) -> Vec<Volume> {
    if input.key.driver.root() == CONTAINER_ROOT {
        vec![host_path("proc", "/proc", None)]
    } else {
        vec![host_path("host", "/", None), host_path("dev", "/dev", None)]
    }
}
