//! The toolkit stage: NVIDIA's installer puts its binaries, the CDI hook among them, onto the host. What else it does
//! depends on the container runtime.

pub mod choice;
pub mod folder_driver;

use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{Pool, Stage, Toolkit},
    report::GKE_ROOT,
};

use crate::{
    desired::{
        distribution,
        driver::choice::DriverChoice,
        effective_spec, images,
        key::{StageSpec, VariantKey},
    },
    world::NodeFacts,
};

pub use choice::{RuntimeSetup, ToolkitChoice};

/// Folder of the host that the installer owns a part of, where the policy and the driver do not call for another.
const FOLDER: &str = "/usr/local/nvidia";
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
pub fn parent(key: &VariantKey) -> &str {
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
            effective_spec::toolkit(policy, pool).operand
        }
    };
    let (path, tag) = images::TOOLKIT;
    let image = images::reference(&policy.spec.images, operand.image.as_ref(), path, tag);
    Some(StageSpec { stage: Stage::Toolkit, image, operand })
}
