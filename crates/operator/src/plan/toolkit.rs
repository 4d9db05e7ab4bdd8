//! The toolkit stage: NVIDIA's installer puts its binaries, the CDI hook among them, onto the host. What else it does
//! depends on the container runtime; one file per way.

mod cdi;
mod choice;
pub mod class;
mod configured;
mod distribution;
mod nri;
pub mod restart;
mod runtime;

use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{Pool, Stage},
};
use k8s_openapi::api::core::v1::{Container, SecurityContext, Volume};

pub use choice::{RuntimeSetup, ToolkitChoice, choose};

use configured::LOADED;

use super::{
    daemon_set::{
        Mode, PodInput, PodParts, empty_dir, env, host_path, mount, operand_container, own_container, unprivileged,
    },
    images, pool,
    variant::{StageSpec, VariantKey},
};

/// Folder of the host that the installer owns a part of.
pub const INSTALL_PARENT: &str = "/usr/local/nvidia";
/// Folder into which the installer puts its binaries; it replaces it as a whole, so it cannot be a mount itself.
pub const INSTALL_DIR: &str = "/usr/local/nvidia/toolkit";
/// Where the installer keeps the number of its process.
pub const PID_DIR: &str = "/run/nvidia/toolkit";

/// The stage, resolved; `None` where no toolkit of ours is needed.
#[must_use]
pub fn stage(policy: &ClusterGpuPolicy, pool: Option<&Pool>, key: &VariantKey) -> Option<StageSpec> {
    let operand = match key.toolkit {
        ToolkitChoice::None => return None,
        ToolkitChoice::Cdi | ToolkitChoice::Nri { .. } | ToolkitChoice::Runtime(_) => {
            pool::toolkit(policy, pool).operand
        }
    };
    let (path, tag) = images::TOOLKIT;
    let image = images::reference(&policy.spec.images, operand.image.as_ref(), path, tag);
    Some(StageSpec { stage: Stage::Toolkit, image, operand })
}

/// The toolkit's pod; `None` where no toolkit of ours is needed.
#[must_use]
pub fn pod(input: &PodInput<'_>) -> Option<PodParts> {
    match &input.key.toolkit {
        ToolkitChoice::None => None,
        ToolkitChoice::Cdi => Some(cdi::pod(input)),
        ToolkitChoice::Nri { socket } => Some(nri::pod(input, socket)),
        ToolkitChoice::Runtime(setup) => Some(configured::pod(input, setup)),
    }
}

/// The gate of what stands on the toolkit, and its volumes; `None` where no toolkit of ours is needed.
#[must_use]
pub fn gate(input: &PodInput<'_>) -> Option<(Container, Vec<Volume>)> {
    let mut args = ["wait", "toolkit", "--host-root=/host"].map(str::to_owned).to_vec();
    args.push(format!("--install-dir={INSTALL_DIR}"));
    let mut volumes = vec![host_path("toolkit", INSTALL_PARENT, Some("DirectoryOrCreate"))];
    let mut mounts = vec![mount("toolkit", &format!("/host{INSTALL_PARENT}"), Mode::ReadOnly)];
    let mut look = |name: &str, path: &str| {
        volumes.push(host_path(name, path, Some("DirectoryOrCreate")));
        mounts.push(mount(name, &format!("/host{path}"), Mode::ReadOnly));
    };
    match &input.key.toolkit {
        ToolkitChoice::None => return None,
        ToolkitChoice::Cdi => {}
        ToolkitChoice::Nri { .. } => {
            look("toolkit-pid", PID_DIR);
            args.push(format!("--pid-file={PID_DIR}/toolkit.pid"));
        }
        ToolkitChoice::Runtime(setup) => {
            for (index, folder) in configured::folders(setup).enumerate() {
                look(&format!("runtime-{index}"), folder);
            }
            look("runtime-loaded", LOADED);
            args.extend(setup.files().map(|file| format!("--runtime-config={file}")));
            args.push(format!("--loaded={LOADED}"));
        }
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Some((own_container(input.settings, "wait-for-toolkit", &args, mounts), volumes))
}

/// The installing container, and where it installs to.
fn installer(input: &PodInput<'_>, args: Vec<String>) -> Container {
    Container {
        // Root, because it writes to folders of the host's root; nothing else.
        security_context: Some(SecurityContext { run_as_user: Some(0), ..unprivileged() }),
        volume_mounts: Some(vec![
            mount("install", INSTALL_PARENT, Mode::Writable),
            mount("pid-file", PID_DIR, Mode::Writable),
        ]),
        ..operand_container(
            input,
            "install-toolkit",
            vec![env("NVIDIA_DRIVER_ROOT", input.key.driver.root())],
            // Arguments, not environment: an installer too old for them refuses them aloud.
            args,
        )
    }
}

fn install_volume() -> Volume {
    host_path("install", INSTALL_PARENT, Some("DirectoryOrCreate"))
}

/// For an installer that ends: nobody else looks for the number of its process.
fn own_pid_volume() -> Volume {
    empty_dir("pid-file")
}
