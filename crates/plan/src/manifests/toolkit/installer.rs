//! The common parts of the toolkit's pods: NVIDIA's installer and the folders to which it writes.

use k8s_openapi::api::core::v1::{Container, SecurityContext, Volume};

use crate::{
    container_names::INSTALL_TOOLKIT,
    desired::toolkit::parent,
    manifests::pod::{Mode, PodInput, empty_dir, env, host_path, mount, operand_container, unprivileged},
};

/// The folder in which the installer stores its process ID.
pub const PID_DIR: &str = "/run/nvidia/toolkit";

/// Returns the installing container with its mounts.
pub fn installer(input: &PodInput<'_>, mut args: Vec<String>) -> Container {
    args.extend(input.key.toolkit_folder.iter().map(|folder| format!("--toolkit-install-dir={folder}")));
    Container {
        // Root without privileges, because it writes to folders that root owns.
        security_context: Some(SecurityContext { run_as_user: Some(0), ..unprivileged() }),
        volume_mounts: Some(vec![
            mount("install", parent(input.key), Mode::Writable),
            mount("pid-file", PID_DIR, Mode::Writable),
        ]),
        ..operand_container(
            input,
            INSTALL_TOOLKIT,
            vec![env("NVIDIA_DRIVER_ROOT", input.key.driver.root())],
            // Arguments, not environment: an installer that is too old for them fails with a message.
            args,
        )
    }
}

/// Returns the volume of the install folder.
pub fn install_volume(input: &PodInput<'_>) -> Volume {
    host_path("install", parent(input.key), Some("DirectoryOrCreate"))
}

/// Returns the volume for the process ID of an installer that ends, which no gate reads.
pub fn own_pid_volume() -> Volume {
    empty_dir("pid-file")
}
