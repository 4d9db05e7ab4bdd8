//! The pods of the device plugin and of MPS's control daemon.

mod config;
pub mod dra;
pub mod gke;
mod nvidia;

use crate::{
    desired::device_plugin::PluginChoice,
    manifests::pod::{PodInput, PodParts},
};

pub fn pod(input: &PodInput<'_>) -> Option<PodParts> {
    match &input.key.plugin {
        PluginChoice::Nvidia { sharing, mig, layout } => {
            Some(nvidia::nvidia_pod(input, sharing.as_ref(), *mig, layout.as_ref()))
        }
        PluginChoice::Gke { replicas, metrics_port } => Some(gke::pod(input, *replicas, *metrics_port)),
        PluginChoice::Dra => Some(dra::pod(input)),
        PluginChoice::External => None,
    }
}

pub fn mps_pod(input: &PodInput<'_>) -> Option<PodParts> {
    match &input.key.plugin {
        PluginChoice::Nvidia { sharing: Some(sharing), mig, .. } => Some(nvidia::mps_daemon_pod(input, sharing, *mig)),
        _ => None,
    }
}
