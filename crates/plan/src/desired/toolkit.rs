//! The toolkit's stage: NVIDIA's installer copies its binaries, including the CDI hook, to the host. Further steps
//! depend on the container runtime.

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

/// The default folder of the host in which the toolkit is installed.
const FOLDER: &str = "/usr/local/nvidia";

/// Returns the folder of the host in which the toolkit is installed, if not the default. On Container-Optimized OS, the
/// folder of Google's driver installers is the only one that is writable and executable.
pub fn folder(toolkit: &Toolkit, driver: &DriverChoice) -> Option<String> {
    let beside_driver = || Some(GKE_ROOT).filter(|root| *root == driver.root()).map(str::to_owned);
    toolkit.install_dir.clone().or_else(beside_driver).filter(|folder| folder != FOLDER)
}

/// Returns kubelet's root directory on a node, if its distribution uses another one than the default.
pub fn kubelet_root(toolkit: &Toolkit, node: &NodeFacts) -> Option<&'static str> {
    distribution::kubelet_root(distribution::of(toolkit.distribution, node))
}

/// Returns the folder of the host in which a variant's toolkit is installed.
pub fn parent(key: &VariantKey) -> &str {
    key.toolkit_folder.as_deref().unwrap_or(FOLDER)
}

/// Returns the folder of the installer's binaries. The installer replaces the folder as a whole, so it cannot be a
/// mount.
pub fn install_dir(key: &VariantKey) -> String {
    format!("{}/toolkit", parent(key))
}

/// Returns the resolved stage; `None` if this operator installs no toolkit.
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
