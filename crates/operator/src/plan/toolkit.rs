//! The toolkit stage: NVIDIA's installer puts its binaries, the CDI hook among them, onto the host. With CDI no
//! runtime is configured and none restarted.

mod choice;
mod runtime;

use gpu_operator_crd::{
    ClusterGpuPolicy, keys,
    policy::{Pool, Stage},
};
use k8s_openapi::api::core::v1::{Container, SecurityContext};

pub use choice::{ToolkitChoice, choose};

use super::{
    daemon_set::{
        Mode, PodInput, PodParts, driver_gate, driver_gate_volumes, env, host_path, mount, operand_container,
        own_container, unprivileged,
    },
    images, pool,
    variant::{StageSpec, VariantKey},
};

/// Folder of the host that the installer owns a part of.
pub const INSTALL_PARENT: &str = "/usr/local/nvidia";
/// Folder into which the installer puts its binaries; it replaces it as a whole, so it cannot be a mount itself.
pub const INSTALL_DIR: &str = "/usr/local/nvidia/toolkit";

/// The stage, resolved; `None` where no toolkit of ours is needed.
#[must_use]
pub fn stage(policy: &ClusterGpuPolicy, pool: Option<&Pool>, key: &VariantKey) -> Option<StageSpec> {
    let (path, tag) = images::TOOLKIT;
    let operand = match key.toolkit {
        ToolkitChoice::Cdi => pool::toolkit(policy, pool).operand,
        ToolkitChoice::None => return None,
    };
    let image = images::reference(&policy.spec.images, operand.image.as_ref(), path, tag);
    Some(StageSpec { stage: Stage::Toolkit, image, operand })
}

/// The toolkit's pod: the installer runs to its end, then the pod stays, so that its readiness can be seen.
#[must_use]
pub fn pod(input: &PodInput<'_>) -> PodParts {
    let installer = operand_container(
        input,
        "install-toolkit",
        vec![env("NVIDIA_DRIVER_ROOT", input.key.driver.root())],
        // Arguments, not environment: an installer too old for CDI alone refuses them aloud.
        vec!["--no-daemon".to_owned(), "--no-runtime-config".to_owned()],
    );
    let installer = Container {
        // Root, because it writes to a folder of the host's root; nothing else.
        security_context: Some(SecurityContext { run_as_user: Some(0), ..unprivileged() }),
        volume_mounts: Some(vec![
            mount("install", INSTALL_PARENT, Mode::Writable),
            mount("pid-file", "/run/nvidia/toolkit", Mode::Writable),
        ]),
        ..installer
    };
    let mut volumes = driver_gate_volumes(input);
    volumes.push(host_path("install", INSTALL_PARENT, Some("DirectoryOrCreate")));
    volumes.push(k8s_openapi::api::core::v1::Volume {
        name: "pid-file".to_owned(),
        empty_dir: Some(k8s_openapi::api::core::v1::EmptyDirVolumeSource::default()),
        ..k8s_openapi::api::core::v1::Volume::default()
    });
    PodParts {
        init: vec![driver_gate(input), installer],
        main: own_container(input.settings, keys::TOOLKIT.trim_start_matches(keys::PREFIX), &["hold"], vec![]),
        volumes,
        host_pid: false,
        grace_seconds: 5,
    }
}
