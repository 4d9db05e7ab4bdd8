//! The device-plugin stage: who tells kubelet of the GPUs, one file per plugin; and the stage before it, MPS's control
//! daemon, which is there where GPUs are shared by MPS.

mod choice;
mod config;
mod divider;
mod gke;
mod minimum;
mod mps;
mod nvidia;

use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{Operand, Pool, Stage},
};

pub use choice::{PluginChoice, choose};
pub use divider::DIVIDER;
pub use gke::DRIVER_IN_CONTAINER;
pub use minimum::check as check_image;

use super::{
    daemon_set::{PodInput, PodParts},
    images, pool,
    variant::{StageSpec, VariantKey},
};

/// Where kubelet listens for plugins; plugins and kubelet have it built in, whatever kubelet's `--root-dir` is (Kubernetes 1.36,
/// `pkg/kubelet/cm/devicemanager/manager.go`).
const SOCKETS: &str = "/var/lib/kubelet/device-plugins";

/// The stage, resolved; `None` where the plugin is not ours to install.
#[must_use]
pub fn stage(policy: &ClusterGpuPolicy, pool: Option<&Pool>, key: &VariantKey) -> Option<StageSpec> {
    let default = match key.plugin {
        PluginChoice::Nvidia { .. } => (images::REGISTRY, images::DEVICE_PLUGIN.0, images::DEVICE_PLUGIN.1),
        PluginChoice::Gke { .. } => images::GKE_DEVICE_PLUGIN,
        PluginChoice::External => return None,
    };
    let operand = pool::device_plugin(policy, pool).operand;
    let image = images::reference_of(&policy.spec.images, operand.image.as_ref(), default);
    Some(StageSpec { stage: Stage::DevicePlugin, image, operand })
}

/// The stage of MPS's control daemon, resolved; `None` where GPUs are not shared by MPS. Environment, arguments and
/// resources that a policy has for the plugin are not for the daemon; the image is one.
#[must_use]
pub fn mps_stage(policy: &ClusterGpuPolicy, pool: Option<&Pool>, key: &VariantKey) -> Option<StageSpec> {
    key.plugin.mps()?;
    let plugin = stage(policy, pool, key)?;
    let operand = Operand { image: plugin.operand.image, ..Operand::default() };
    Some(StageSpec { stage: Stage::Mps, image: plugin.image, operand })
}

/// The service account of the plugin's pod, where it has to do with the API server.
#[must_use]
pub fn account(plugin: &PluginChoice) -> Option<&'static str> {
    match plugin {
        PluginChoice::Gke { health_monitoring: true, .. } => Some(gke::ACCOUNT),
        PluginChoice::Gke { .. } | PluginChoice::Nvidia { .. } | PluginChoice::External => None,
    }
}

/// The stage's pod; `None` where the plugin is not ours to install.
#[must_use]
pub fn pod(input: &PodInput<'_>) -> Option<PodParts> {
    match &input.key.plugin {
        PluginChoice::Nvidia { sharing, mig, layout, flags } => {
            Some(nvidia::pod(input, sharing.as_ref(), *mig, layout.as_ref(), *flags))
        }
        PluginChoice::Gke { replicas, metrics_port, health_monitoring } => {
            Some(gke::pod(input, *replicas, *metrics_port, *health_monitoring))
        }
        PluginChoice::External => None,
    }
}

/// The pod of MPS's control daemon; `None` where GPUs are not shared by MPS.
#[must_use]
pub fn mps_pod(input: &PodInput<'_>) -> Option<PodParts> {
    match &input.key.plugin {
        PluginChoice::Nvidia { sharing: Some(sharing), mig, .. } => Some(mps::pod(input, sharing, *mig)),
        _ => None,
    }
}
