//! The driver stage: which driver a kind of node gets, decided by the policy and by what the node has.

pub mod choice;
pub mod choose;
pub mod precompiled;
pub mod run_file;
pub mod subject;

use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{DriverSource, Pool, Stage},
    report::DRIVER_ROOTS,
};

use crate::desired::{
    effective_spec, images,
    key::{StageSpec, VariantKey},
};

pub use choice::DriverChoice;

/// Whether the probe looks into a driver's root without being told.
#[must_use]
pub fn is_known_root(root: &str) -> bool {
    DRIVER_ROOTS.contains(&root)
}

/// The stage, resolved; `None` where the driver is not ours to install.
#[must_use]
pub fn stage(policy: &ClusterGpuPolicy, pool: Option<&Pool>, key: &VariantKey) -> Option<StageSpec> {
    let driver = effective_spec::driver(policy, pool);
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
