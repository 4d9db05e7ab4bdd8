//! The driver stage: which driver a kind of node gets, and what its pod looks like, one file per source.

mod choice;
mod choose;
mod complaint;
mod container;
mod device_nodes;
mod gke_cos;
mod gke_ubuntu;
mod host_files;
mod installer;
mod nouveau;
mod precompiled;
pub mod removal;
mod renewal;
mod run_file;

use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{DriverSource, Pool, Stage},
    report::DRIVER_ROOTS,
};

pub use choice::DriverChoice;
pub use choose::{GKE_DRIVER, Subject, choose, installed_by_gke, theirs};
pub use complaint::{complaint, says_not_found};
pub use container::PID_FILE;
pub use device_nodes::{DEVICE_NODES, is_nvidias};
pub use installer::{GUARD, INSTALLER};
pub use nouveau::UNLOAD_NOUVEAU;
pub use precompiled::wanted as wanted_precompiled;
pub use renewal::{holders_of_a_broken_root, holders_of_an_old_root};

use super::{
    daemon_set::{PodInput, PodParts},
    images, pool,
    variant::{StageSpec, VariantKey},
};

/// Whether the probe looks into a driver's root without being told.
#[must_use]
pub fn is_known_root(root: &str) -> bool {
    DRIVER_ROOTS.contains(&root)
}

/// The stage, resolved; `None` where the driver is not ours to install.
#[must_use]
pub fn stage(policy: &ClusterGpuPolicy, pool: Option<&Pool>, key: &VariantKey) -> Option<StageSpec> {
    let driver = pool::driver(policy, pool);
    let mut operand = driver.operand;
    let is_container = matches!(key.driver, DriverChoice::Container { .. });
    if driver.source.unwrap_or_default() == DriverSource::Auto && !is_container {
        // Who names an image or arguments without naming the source means the common one.
        (operand.image, operand.args) = (None, Vec::new());
    }
    let (from, custom) = (&policy.spec.images, operand.image.as_ref());
    let image = match &key.driver {
        DriverChoice::Container { version, os, kernel: None, .. } => {
            images::reference(from, custom, images::DRIVER, &format!("{version}-{os}"))
        }
        DriverChoice::Container { version, os, kernel: Some(kernel), .. } => {
            images::reference(from, custom, images::DRIVER, &precompiled::tag(version, kernel, os))
        }
        DriverChoice::GkeCos { .. } => images::preloaded(custom, images::GKE_COS),
        DriverChoice::GkeUbuntu { .. } => images::preloaded(custom, images::GKE_UBUNTU),
        DriverChoice::RunFile { .. } => images::own(custom)?,
        DriverChoice::Preinstalled { .. } => return None,
    };
    Some(StageSpec { stage: Stage::Driver, image, operand })
}

/// The stage's pod; `None` where the driver is not ours to install.
#[must_use]
pub fn pod(input: &PodInput<'_>) -> Option<PodParts> {
    let preloaded = input.spec.operand.image.as_ref().is_none_or(|image| image.repository.is_none());
    let version = input.key.driver.version();
    Some(match &input.key.driver {
        DriverChoice::Container { open, os, .. } => container::pod(input, version.unwrap_or_default(), os, *open),
        DriverChoice::GkeCos { flavour, root } => gke_cos::pod(input, flavour, version, root, preloaded),
        DriverChoice::GkeUbuntu { root, .. } => gke_ubuntu::pod(input, version, root, preloaded),
        DriverChoice::RunFile { url, root, .. } => run_file::pod(input, version, url, root),
        DriverChoice::Preinstalled { .. } => return None,
    })
}
