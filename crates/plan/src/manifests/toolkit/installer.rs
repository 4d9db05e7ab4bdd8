//! What the toolkit's pods have in common: NVIDIA's installer and the folders that it writes to.

use k8s_openapi::api::core::v1::{Container, SecurityContext, Volume};

use crate::{
    container_names::INSTALL_TOOLKIT,
    desired::toolkit::parent,
    manifests::pod::{Mode, PodInput, empty_dir, env, host_path, mount, operand_container, unprivileged},
};

/// Where the installer keeps the number of its process.
pub const PID_DIR: &str = "/run/nvidia/toolkit";

/// The installing container, and where it installs to.
pub fn installer(input: &PodInput<'_>, mut args: Vec<String>) -> Container {
    args.extend(input.key.toolkit_folder.iter().map(|folder| format!("--toolkit-install-dir={folder}")));
    Container {
        // Root, because it writes to folders of the host's root; nothing else.
        security_context: Some(SecurityContext { run_as_user: Some(0), ..unprivileged() }),
        volume_mounts: Some(vec![
            mount("install", parent(input.key), Mode::Writable),
            mount("pid-file", PID_DIR, Mode::Writable),
        ]),
        ..operand_container(
            input,
            INSTALL_TOOLKIT,
            vec![env("NVIDIA_DRIVER_ROOT", input.key.driver.root())],
            // Arguments, not environment: an installer too old for them refuses them aloud.
            args,
        )
    }
}

/// Returns the volume of the folder that the installer owns.
#[must_use]
pub fn install_volume(input: &PodInput<'_>) -> Volume {
    host_path("install", parent(input.key), Some("DirectoryOrCreate"))
}

/// For an installer that ends: nobody else looks for the number of its process.
#[must_use]
pub fn own_pid_volume() -> Volume {
    empty_dir("pid-file")
}
