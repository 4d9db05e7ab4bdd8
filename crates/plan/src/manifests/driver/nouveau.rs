//! The step that takes the GPUs from nouveau, the kernel's own driver for them, before NVIDIA's is installed.

use k8s_openapi::api::core::v1::{Container, SecurityContext};

use crate::{
    container_names::UNLOAD_NOUVEAU,
    manifests::pod::{Mode, mount, own_container},
    settings::Settings,
};

/// The container. It ends at once where nouveau is not loaded, unloads one that nothing uses, and waits with a message while
/// something does.
#[must_use]
pub fn container(settings: &Settings) -> Container {
    let mounts = vec![mount("sys", "/host/sys", Mode::ReadOnly)];
    Container {
        // Privileged: only root with CAP_SYS_MODULE may unload a kernel module, and the probe's image is root's by no other way.
        security_context: Some(SecurityContext {
            privileged: Some(true),
            run_as_user: Some(0),
            ..SecurityContext::default()
        }),
        ..own_container(settings, UNLOAD_NOUVEAU, &["unload-nouveau", "--host-root", "/host"], mounts)
    }
}
