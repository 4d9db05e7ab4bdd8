//! The init container that unloads nouveau, the kernel's own driver for NVIDIA GPUs, before NVIDIA's driver is
//! installed.

use k8s_openapi::api::core::v1::Container;

use crate::{
    container_names::UNLOAD_NOUVEAU,
    manifests::pod::{Mode, mount, own_container, root_with},
    settings::Settings,
};

/// Returns the container. It ends at once if nouveau is not loaded, unloads nouveau if it is not in use, and otherwise
/// waits with a message.
pub fn container(settings: &Settings) -> Container {
    let mounts = vec![mount("sys", "/host/sys", Mode::ReadOnly)];
    Container {
        // Not privileged: the kernel requires only this capability to unload a module, with which the default seccomp profiles of
        // the runtimes permit the call.
        security_context: Some(root_with(&["SYS_MODULE"])),
        ..own_container(settings, UNLOAD_NOUVEAU, &["unload-nouveau", "--host-root", "/host"], mounts)
    }
}
