//! The driver stage: which driver a kind of node gets, and what its pod looks like, one file per source.

mod choice;
mod container;

use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{Pool, Stage},
};

pub use choice::{CONTAINER_ROOT, DriverChoice, choose, theirs};

use super::{
    daemon_set::{PodInput, PodParts},
    images, pool,
    variant::{StageSpec, VariantKey},
};

/// The stage, resolved; `None` where the driver is not ours to install.
#[must_use]
pub fn stage(policy: &ClusterGpuPolicy, pool: Option<&Pool>, key: &VariantKey) -> Option<StageSpec> {
    let driver = pool::driver(policy, pool);
    let image = match &key.driver {
        DriverChoice::Container { version, os, .. } => {
            let tag = format!("{version}-{os}");
            images::reference(&policy.spec.images, driver.operand.image.as_ref(), images::DRIVER, &tag)
        }
        DriverChoice::Preinstalled { .. } => return None,
    };
    Some(StageSpec { stage: Stage::Driver, image, operand: driver.operand })
}

/// The stage's pod; `None` where the driver is not ours to install.
#[must_use]
pub fn pod(input: &PodInput<'_>) -> Option<PodParts> {
    match &input.key.driver {
        DriverChoice::Container { version, open, .. } => Some(container::pod(input, version, *open)),
        DriverChoice::Preinstalled { .. } => None,
    }
}
