//! The init container that unloads nouveau, the kernel's own driver for NVIDIA GPUs, before NVIDIA's driver is
//! installed.

use k8s_openapi::api::core::v1::{Container, SecurityContext};

use crate::{
    container_names::UNLOAD_NOUVEAU,
    manifests::pod::{Mode, mount, own_container},
    settings::Settings,
};

/// Returns the container. It ends at once if nouveau is not loaded, unloads nouveau if it is not in use, and otherwise
/// waits with a message.
#[must_use]
pub fn container(settings: &Settings) -> Container {
    let mounts = vec![mount("sys", "/host/sys", Mode::ReadOnly)];
    Container {
        // Privileged: only root with CAP_SYS_MODULE may unload a kernel module, and the probe's image does not run as
        // root by default.
        security_context: Some(SecurityContext {
            privileged: Some(true),
            run_as_user: Some(0),
            ..SecurityContext::default()
        }),
        ..own_container(settings, UNLOAD_NOUVEAU, &["unload-nouveau", "--host-root", "/host"], mounts)
    }
}
