//! The pods of the device-plugin stage, one file per plugin, and of the stage before it: MPS's control daemon.

mod config;
pub mod gke;
mod mig;
mod mps;
mod nvidia;

use crate::{
    desired::device_plugin::choice::PluginChoice,
    manifests::pod::{PodInput, PodParts},
};

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
