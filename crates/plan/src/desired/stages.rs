//! The stages of a variant that this operator installs: their images and the users' settings.

use gpu_operator_crd::policy::{DriverSource, Operand, Stage};

use crate::desired::{
    device_plugin::PluginChoice,
    driver::{DriverChoice, precompiled_tag},
    images,
    key::{StageSpec, VariantKey},
    toolkit::{FOLDER, ToolkitChoice},
};
use crate::pool_settings::PoolSettings;

pub fn driver_stage(pool: &PoolSettings<'_>, key: &VariantKey) -> Option<StageSpec> {
    let driver = pool.driver;
    let mut operand = driver.operand.clone();
    let is_container = matches!(key.driver, DriverChoice::Container { .. });
    if driver.source.unwrap_or_default() == DriverSource::Auto && !is_container {
        // An image or arguments without a source are meant for the container.
        (operand.image, operand.args) = (None, Vec::new());
    }
    let (from, custom) = (&pool.policy.spec.images, operand.image.as_ref());
    let image = match &key.driver {
        DriverChoice::Container { version, os, kernel: None, .. } => {
            images::reference(from, custom, images::DRIVER, &format!("{version}-{os}"))
        }
        DriverChoice::Container { version, os, kernel: Some(kernel), .. } => {
            images::reference(from, custom, images::DRIVER, &precompiled_tag(version, kernel, os))
        }
        DriverChoice::GkeCos { .. } => images::preloaded(custom, images::GKE_COS),
        DriverChoice::GkeUbuntu { .. } => images::preloaded(custom, images::GKE_UBUNTU),
        DriverChoice::RunFile { .. } => images::own(custom)?,
        DriverChoice::Preinstalled { .. } => return None,
    };
    Some(StageSpec { stage: Stage::Driver, image, operand })
}

pub fn toolkit_stage(pool: &PoolSettings<'_>, key: &VariantKey) -> Option<StageSpec> {
    let operand = match key.toolkit {
        ToolkitChoice::None | ToolkitChoice::Host(_) => return None,
        ToolkitChoice::Cdi | ToolkitChoice::Nri { .. } | ToolkitChoice::Runtime(_) => pool.toolkit.operand.clone(),
    };
    let (path, tag) = images::TOOLKIT;
    let image = images::reference(&pool.policy.spec.images, operand.image.as_ref(), path, tag);
    Some(StageSpec { stage: Stage::Toolkit, image, operand })
}

pub fn plugin_stage(pool: &PoolSettings<'_>, key: &VariantKey) -> Option<StageSpec> {
    let default = match key.plugin {
        PluginChoice::Nvidia { .. } => {
            images::Upstream { host: images::REGISTRY, path: images::DEVICE_PLUGIN.0, version: images::DEVICE_PLUGIN.1 }
        }
        PluginChoice::Gke { .. } => images::GKE_DEVICE_PLUGIN,
        PluginChoice::Dra => images::DRA_DRIVER,
        PluginChoice::External => return None,
    };
    let by_claims = key.plugin == PluginChoice::Dra;
    let operand = if by_claims { &pool.allocation.dra } else { &pool.device_plugin.operand }.clone();
    let image = images::reference_of(&pool.policy.spec.images, operand.image.as_ref(), default);
    Some(StageSpec { stage: Stage::DevicePlugin, image, operand })
}

/// MPS's control daemon has the plugin's image, but not the environment, arguments and resources that are set for the plugin.
pub fn mps_stage(pool: &PoolSettings<'_>, key: &VariantKey) -> Option<StageSpec> {
    key.plugin.mps()?;
    let plugin = plugin_stage(pool, key)?;
    let operand = Operand { image: plugin.operand.image, ..Operand::default() };
    Some(StageSpec { stage: Stage::Mps, image: plugin.image, operand })
}

pub fn toolkit_parent(key: &VariantKey) -> &str {
    key.toolkit_folder.as_deref().unwrap_or(FOLDER)
}

/// The installer replaces this folder as a whole, so it cannot be a mount.
pub fn toolkit_install_dir(key: &VariantKey) -> String {
    format!("{}/toolkit", toolkit_parent(key))
}
