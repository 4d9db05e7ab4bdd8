//! The pods of the device plugin and of MPS's control daemon.

mod config;
pub mod gke;
mod nvidia;

use crate::{
    desired::device_plugin::PluginChoice,
    manifests::pod::{PodInput, PodParts},
};

pub fn account(plugin: &PluginChoice) -> Option<&'static str> {
    match plugin {
        PluginChoice::Gke { health_monitoring: true, .. } => Some(gke::ACCOUNT),
        PluginChoice::Gke { .. } | PluginChoice::Nvidia { .. } | PluginChoice::External => None,
    }
}

pub fn pod(input: &PodInput<'_>) -> Option<PodParts> {
    match &input.key.plugin {
        PluginChoice::Nvidia { sharing, mig, layout, flags } => {
            Some(nvidia::nvidia_pod(input, sharing.as_ref(), *mig, layout.as_ref(), *flags))
        }
        PluginChoice::Gke { replicas, metrics_port, health_monitoring } => {
            Some(gke::pod(input, *replicas, *metrics_port, *health_monitoring))
        }
        PluginChoice::External => None,
    }
}

pub fn mps_pod(input: &PodInput<'_>) -> Option<PodParts> {
    match &input.key.plugin {
        PluginChoice::Nvidia { sharing: Some(sharing), mig, .. } => Some(nvidia::mps_daemon_pod(input, sharing, *mig)),
        _ => None,
    }
}
