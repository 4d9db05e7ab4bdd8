//! The sidecar in the driver's pod that creates the device nodes that NVIDIA's container does not: those of unified
//! memory, mode setting and MIG's capabilities, and the links by which systemd finds them.

use k8s_openapi::api::core::v1::{Container, Volume};

use crate::{
    container_names::DEVICE_NODES,
    manifests::pod::{Mode, host_path, mount, own_container, root_with},
    settings::Settings,
};

/// Returns the sidecar. It starts before the driver and runs as long as the driver, because nodes must be created after
/// every load.
pub fn container(settings: &Settings) -> Container {
    let mounts = vec![
        mount("sys", "/host/sys", Mode::ReadOnly),
        mount("run-nvidia", "/host/run/nvidia", Mode::FollowWritable),
        mount("device-numbers", "/host/proc/devices", Mode::ReadOnly),
        mount("dev-char", "/host/dev/char", Mode::Writable),
    ];
    Container {
        restart_policy: Some("Always".to_owned()),
        // Root, because root owns the driver's root and the host's /dev, with only the capability that creates nodes.
        security_context: Some(root_with(&["MKNOD"])),
        ..own_container(settings, DEVICE_NODES, &["device-nodes", "--host-root", "/host"], mounts)
    }
}

/// Returns its volumes, except those that the driver's container also has.
pub fn volumes() -> [Volume; 2] {
    [
        host_path("device-numbers", "/proc/devices", Some("File")),
        host_path("dev-char", "/dev/char", Some("DirectoryOrCreate")),
    ]
}
