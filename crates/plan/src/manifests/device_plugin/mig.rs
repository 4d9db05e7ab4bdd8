//! What divides the GPUs by MIG: an init container of the plugin's pod, so that whenever that begins, after a reboot too, the
//! GPUs are as they should be before it looks at them. With the layout there already it changes nothing.

use gpu_operator_crd::report::CONTAINER_ROOT;
use k8s_openapi::api::core::v1::{Container, SecurityContext, Volume};

use crate::{
    container_names::DIVIDER,
    desired::mig_layout::Layout,
    manifests::pod::{Mode, PodInput, host_path, mount, own_container},
};

/// The container. The pod has to have the host's processes, or NVML would not tell it who uses the GPUs (that it does so to
/// a pod that has them is unverified).
#[must_use]
pub fn container(input: &PodInput<'_>, layout: &Layout) -> Container {
    let root = input.key.driver.root();
    let layout = serde_json::json!(layout).to_string();
    // Writable: the library makes device nodes of what it makes. A root that is no file system of its own works from the
    // host's.
    let mounts = if root == CONTAINER_ROOT {
        vec![
            mount("sys", "/host/sys", Mode::ReadOnly),
            mount("proc", "/host/proc", Mode::ReadOnly),
            mount("driver-root", &format!("/host{root}"), Mode::Writable),
        ]
    } else {
        vec![mount("host", "/host", Mode::Writable)]
    };
    let args = ["mig", "--host-root", "/host", "--driver-root", root, "--layout", &layout];
    Container {
        // Privileged: NVML opens the GPUs' device nodes, and only root may divide them; SYS_CHROOT to load the library where
        // it finds them.
        security_context: Some(SecurityContext {
            privileged: Some(true),
            run_as_user: Some(0),
            ..SecurityContext::default()
        }),
        ..own_container(input.settings, DIVIDER, &args, mounts)
    }
}

/// The volumes that it needs besides those of the plugin.
#[must_use]
pub fn volumes(input: &PodInput<'_>) -> Vec<Volume> {
    if input.key.driver.root() == CONTAINER_ROOT {
        vec![host_path("proc", "/proc", None)]
    } else {
        vec![host_path("host", "/", None)]
    }
}
