//! The toolkit stage: NVIDIA's installer puts its binaries, the CDI hook among them, onto the host. What else it does
//! depends on the container runtime; one file per way.

mod cdi;
mod choice;
pub mod class;
mod configured;
mod distribution;
pub mod folder_driver;
mod nri;
pub mod removal;
pub mod restart;
mod runtime;

use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{Pool, Stage, Toolkit},
    report::GKE_ROOT,
};
use k8s_openapi::api::core::v1::{Container, SecurityContext, Volume};

pub use choice::{RuntimeSetup, ToolkitChoice, choose};
pub use runtime::{Kind, Runtime};

use configured::LOADED;

use super::{
    daemon_set::{
        Mode, PodInput, PodParts, empty_dir, env, host_path, mount, operand_container, own_container, unprivileged,
    },
    driver::DriverChoice,
    images, pool,
    variant::{StageSpec, VariantKey},
};
use crate::world::NodeFacts;

/// The step of a toolkit's pod in which NVIDIA's installer runs.
const INSTALL: &str = "install-toolkit";
/// Folder of the host that the installer owns a part of, where the policy and the driver do not call for another.
const FOLDER: &str = "/usr/local/nvidia";
/// Where the installer keeps the number of its process.
pub const PID_DIR: &str = "/run/nvidia/toolkit";

/// Under which folder of the host the toolkit is installed, where that is not the usual one. Where Google's installers put
/// drivers is the one folder of Container-Optimized OS that can be written to and run from.
#[must_use]
pub fn folder(toolkit: &Toolkit, driver: &DriverChoice) -> Option<String> {
    let beside_driver = || Some(GKE_ROOT).filter(|root| *root == driver.root()).map(str::to_owned);
    toolkit.install_dir.clone().or_else(beside_driver).filter(|folder| folder != FOLDER)
}

/// Kubelet's folder on a node, where its distribution has another one than the usual.
#[must_use]
pub fn kubelet_root(toolkit: &Toolkit, node: &NodeFacts) -> Option<&'static str> {
    distribution::kubelet_root(distribution::of(toolkit.distribution, node))
}

/// Folder of the host that a variant's installer owns a part of.
fn parent(key: &VariantKey) -> &str {
    key.toolkit_folder.as_deref().unwrap_or(FOLDER)
}

/// Folder into which the installer puts its binaries; it replaces it as a whole, so it cannot be a mount itself.
#[must_use]
pub fn install_dir(key: &VariantKey) -> String {
    format!("{}/toolkit", parent(key))
}

/// The stage, resolved; `None` where no toolkit of ours is needed.
#[must_use]
pub fn stage(policy: &ClusterGpuPolicy, pool: Option<&Pool>, key: &VariantKey) -> Option<StageSpec> {
    let operand = match key.toolkit {
        ToolkitChoice::None | ToolkitChoice::Host(_) => return None,
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
        ToolkitChoice::None | ToolkitChoice::Host(_) => None,
        ToolkitChoice::Cdi => Some(cdi::pod(input)),
        ToolkitChoice::Nri { socket } => Some(nri::pod(input, socket)),
        ToolkitChoice::Runtime(setup) => Some(configured::pod(input, setup)),
    }
}

/// The gate of what stands on the toolkit, and its volumes; `None` where no toolkit of ours is needed.
#[must_use]
pub fn gate(input: &PodInput<'_>) -> Option<(Container, Vec<Volume>)> {
    let mut args = ["wait", "toolkit", "--host-root=/host"].map(str::to_owned).to_vec();
    args.push(format!("--install-dir={}", install_dir(input.key)));
    let parent = parent(input.key);
    let mut volumes = vec![host_path("toolkit", parent, Some("DirectoryOrCreate"))];
    let mut mounts = vec![mount("toolkit", &format!("/host{parent}"), Mode::ReadOnly)];
    let mut look = |name: &str, path: &str| {
        volumes.push(host_path(name, path, Some("DirectoryOrCreate")));
        mounts.push(mount(name, &format!("/host{path}"), Mode::ReadOnly));
    };
    match &input.key.toolkit {
        ToolkitChoice::None | ToolkitChoice::Host(_) => return None,
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
fn installer(input: &PodInput<'_>, mut args: Vec<String>) -> Container {
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
            INSTALL,
            vec![env("NVIDIA_DRIVER_ROOT", input.key.driver.root())],
            // Arguments, not environment: an installer too old for them refuses them aloud.
            args,
        )
    }
}

fn install_volume(input: &PodInput<'_>) -> Volume {
    host_path("install", parent(input.key), Some("DirectoryOrCreate"))
}

/// For an installer that ends: nobody else looks for the number of its process.
fn own_pid_volume() -> Volume {
    empty_dir("pid-file")
}
