//! The device plugin's stage, which registers GPUs with kubelet, and the stage before it: MPS's control daemon, which
//! exists if GPUs are shared by MPS.

pub mod choice;
pub mod minimum;

use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{Operand, Pool, Stage},
};

use crate::desired::{
    effective_spec, images,
    key::{StageSpec, VariantKey},
};

pub use choice::PluginChoice;

/// Returns the resolved stage; `None` if this operator does not install the plugin.
pub fn stage(policy: &ClusterGpuPolicy, pool: Option<&Pool>, key: &VariantKey) -> Option<StageSpec> {
    let default = match key.plugin {
        PluginChoice::Nvidia { .. } => {
            images::Upstream { host: images::REGISTRY, path: images::DEVICE_PLUGIN.0, version: images::DEVICE_PLUGIN.1 }
        }
        PluginChoice::Gke { .. } => images::GKE_DEVICE_PLUGIN,
        PluginChoice::External => return None,
    };
    let operand = effective_spec::device_plugin(policy, pool).operand;
    let image = images::reference_of(&policy.spec.images, operand.image.as_ref(), default);
    Some(StageSpec { stage: Stage::DevicePlugin, image, operand })
}

/// Returns the resolved stage of MPS's control daemon; `None` if GPUs are not shared by MPS. Environment, arguments and
/// resources that a policy sets for the plugin do not apply to the daemon; both use the same image.
pub fn mps_stage(policy: &ClusterGpuPolicy, pool: Option<&Pool>, key: &VariantKey) -> Option<StageSpec> {
    key.plugin.mps()?;
    let plugin = stage(policy, pool, key)?;
    let operand = Operand { image: plugin.operand.image, ..Operand::default() };
    Some(StageSpec { stage: Stage::Mps, image: plugin.image, operand })
}
