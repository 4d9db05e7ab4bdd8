//! The host's own driver: whether it supports the node's GPUs. It is never changed, and the catalogue may be incomplete, so
//! it is reported only for a node that is not ready with it.

use gpu_operator_crd::{policy::Stage, report::NvmlState};

use crate::{
    assess::member::Member,
    catalogue::{Accelerator, Catalogue},
    desired::driver::{choice::DriverChoice, choose::installed_by_gke},
};

/// Returns why the host's driver does not support the node's GPUs; `None` if it does, or if the driver is not the host's.
pub fn problem(catalogue: &Catalogue, member: &Member<'_>) -> Option<String> {
    let Some(DriverChoice::Preinstalled { root }) = member.driver() else {
        return None;
    };
    let report = member.report?;
    // Not the host's own: a third-party DaemonSet provides it, or GKE is about to install it.
    let third_party = member.external.third_party(Stage::Driver).is_some();
    let awaited = installed_by_gke(member.node).is_some() && report.driver.loaded.is_none();
    if third_party || awaited || report.nvml.state == NvmlState::Released {
        return None;
    }
    // A model is supported if NVML has opened one of its GPUs, regardless of the catalogue.
    let served = |accelerator: &Accelerator| {
        let opened = report.gpus.iter().filter(|gpu| gpu.uuid.is_some());
        let mut ids = opened.filter_map(|gpu| u16::from_str_radix(&gpu.device_id, 16).ok());
        ids.any(|id| accelerator.is_pci(id))
    };
    // If the host has several branches, as Debian allows, the loaded one counts.
    let there = || report.driver.installed.iter().filter(|found| found.root == *root);
    let installed = there().find(|found| report.driver.loaded.as_ref() == Some(&found.version)).or(there().next())?;
    let version = installed.version.as_str();
    let mut accelerators = member.discovery.accelerators.iter().filter(|accelerator| !served(accelerator));
    let error = accelerators.find_map(|accelerator| catalogue.supports(accelerator, version).err())?;
    Some(format!("driver {version} is installed on the host under {root}, but {error}, installed on the host"))
}
