//! The pods of the device plugin's stage, one file per plugin, and of the stage before it: MPS's control daemon.

mod config;
pub mod gke;
mod mig;
mod mps;
mod nvidia;

use crate::{
    desired::device_plugin::choice::PluginChoice,
    manifests::pod::{PodInput, PodParts},
};

/// Returns the service account of the plugin's pod, if the pod uses the API server.
pub fn account(plugin: &PluginChoice) -> Option<&'static str> {
    match plugin {
        PluginChoice::Gke { health_monitoring: true, .. } => Some(gke::ACCOUNT),
        PluginChoice::Gke { .. } | PluginChoice::Nvidia { .. } | PluginChoice::External => None,
    }
}

/// Returns the stage's pod; `None` if this operator does not install the plugin.
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

/// Returns the pod of MPS's control daemon; `None` if GPUs are not shared by MPS.
pub fn mps_pod(input: &PodInput<'_>) -> Option<PodParts> {
    match &input.key.plugin {
        PluginChoice::Nvidia { sharing: Some(sharing), mig, .. } => Some(mps::pod(input, sharing, *mig)),
        _ => None,
    }
}
