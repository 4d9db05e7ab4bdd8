//! The helper in the driver's pod that makes the device nodes which NVIDIA's container leaves out: those of unified memory,
//! of mode setting and of MIG's capabilities, and the links by which systemd finds all of them.

use k8s_openapi::api::core::v1::{Capabilities, Container, SecurityContext, Volume};

use crate::{
    container_names::DEVICE_NODES,
    manifests::pod::{Mode, host_path, mount, own_container, unprivileged},
    settings::Settings,
};

/// The sidecar. It starts before the driver and runs beside it, because nodes are due after every load.
pub fn container(settings: &Settings) -> Container {
    let mounts = vec![
        mount("sys", "/host/sys", Mode::ReadOnly),
        mount("run-nvidia", "/host/run/nvidia", Mode::FollowWritable),
        mount("device-numbers", "/host/proc/devices", Mode::ReadOnly),
        mount("dev-char", "/host/dev/char", Mode::Writable),
    ];
    Container {
        restart_policy: Some("Always".to_owned()),
        // Root, because the driver's root and the host's /dev are root's; and the one right that making nodes takes.
        security_context: Some(SecurityContext {
            run_as_user: Some(0),
            run_as_group: Some(0),
            capabilities: Some(Capabilities {
                add: Some(vec!["MKNOD".to_owned()]),
                drop: Some(vec!["ALL".to_owned()]),
            }),
            ..unprivileged()
        }),
        ..own_container(settings, DEVICE_NODES, &["device-nodes", "--host-root", "/host"], mounts)
    }
}

/// Its volumes, beside those that the driver's container has as well.
pub fn volumes() -> [Volume; 2] {
    [
        host_path("device-numbers", "/proc/devices", Some("File")),
        host_path("dev-char", "/dev/char", Some("DirectoryOrCreate")),
    ]
}
