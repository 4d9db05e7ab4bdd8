//! The device-plugin stage: who tells kubelet of the GPUs, one file per plugin.

mod choice;
mod nvidia;

use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{Pool, Stage},
};

pub use choice::{PluginChoice, choose};

use super::{
    daemon_set::{PodInput, PodParts},
    images, pool,
    variant::{StageSpec, VariantKey},
};

/// The stage, resolved; `None` where the plugin is not ours to install.
#[must_use]
pub fn stage(policy: &ClusterGpuPolicy, pool: Option<&Pool>, key: &VariantKey) -> Option<StageSpec> {
    let (path, tag) = match key.plugin {
        PluginChoice::Nvidia => images::DEVICE_PLUGIN,
    };
    let operand = pool::device_plugin(policy, pool).operand;
    let image = images::reference(&policy.spec.images, operand.image.as_ref(), path, tag);
    Some(StageSpec { stage: Stage::DevicePlugin, image, operand })
}

/// The stage's pod.
#[must_use]
pub fn pod(input: &PodInput<'_>) -> PodParts {
    match input.key.plugin {
        PluginChoice::Nvidia => nvidia::pod(input),
    }
}
