//! The pod of the driver's stage, one file per source.

pub mod container;
mod device_nodes;
mod gke_cos;
mod gke_ubuntu;
mod host_files;
pub mod installer;
mod nouveau;
mod run_file;

use super::pod::{PodInput, PodParts};
use crate::desired::driver::DriverChoice;

/// Returns the stage's pod; `None` if this operator does not install the driver.
pub fn pod(input: &PodInput<'_>) -> Option<PodParts> {
    let preloaded = input.spec.operand.image.as_ref().is_none_or(|image| image.repository.is_none());
    let version = input.key.driver.version();
    Some(match &input.key.driver {
        DriverChoice::Container { open, os, .. } => container::pod(input, version.unwrap_or_default(), os, *open),
        DriverChoice::GkeCos { flavour, root } => gke_cos::pod(input, flavour, version, root, preloaded),
        DriverChoice::GkeUbuntu { root, .. } => gke_ubuntu::pod(input, version, root, preloaded),
        DriverChoice::RunFile { url, sha256, root, .. } => run_file::pod(input, version, url, sha256, root),
        DriverChoice::Preinstalled { .. } => return None,
    })
}
