//! The driver's stage: which driver a kind of node gets, by the policy and the node's state.

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

/// Returns whether the probe inspects a driver's root by default.
pub fn is_known_root(root: &str) -> bool {
    DRIVER_ROOTS.contains(&root)
}

/// Returns the resolved stage; `None` if this operator does not install the driver.
pub fn stage(policy: &ClusterGpuPolicy, pool: Option<&Pool>, key: &VariantKey) -> Option<StageSpec> {
    let driver = effective_spec::driver(policy, pool);
    let mut operand = driver.operand;
    let is_container = matches!(key.driver, DriverChoice::Container { .. });
    if driver.source.unwrap_or_default() == DriverSource::Auto && !is_container {
        // An image or arguments without a source are meant for the container.
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
