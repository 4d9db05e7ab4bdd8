//! The host's own driver: whether it is one that the node's GPUs work with. It is never changed, and the catalogue may not know
//! everything, so that this is said only of a node that is not ready by it.

use gpu_operator_crd::{policy::Stage, report::NvmlState};

use crate::{
    assess::member::Member,
    catalogue::{Accelerator, Catalogue},
    desired::driver::{choice::DriverChoice, choose::installed_by_gke},
};

/// Why the host's driver does not serve the node's GPUs, in a sentence; `None` where it does, or the driver is not the host's.
#[must_use]
pub fn misfit(catalogue: &Catalogue, member: &Member<'_>) -> Option<String> {
    let Some(DriverChoice::Preinstalled { root }) = member.driver() else {
        return None;
    };
    let report = member.report()?;
    // Not the host's own: somebody's DaemonSet brings it, or GKE is about to.
    let theirs = member.external.theirs(Stage::Driver).is_some();
    let awaited = installed_by_gke(member.node).is_some() && report.driver.loaded.is_none();
    if theirs || awaited || report.nvml.state == NvmlState::Released {
        return None;
    }
    // A model of which NVML has opened one is served, whatever the catalogue knows.
    let served = |accelerator: &Accelerator| {
        let opened = report.gpus.iter().filter(|gpu| gpu.uuid.is_some());
        let mut ids = opened.filter_map(|gpu| u16::from_str_radix(&gpu.device_id, 16).ok());
        ids.any(|id| accelerator.is_pci(id))
    };
    // Of several branches that a host has, as Debian can, the loaded one counts.
    let there = || report.driver.installed.iter().filter(|found| found.root == *root);
    let installed = there().find(|found| report.driver.loaded.as_ref() == Some(&found.version)).or(there().next())?;
    let version = installed.version.as_str();
    let mut accelerators = member.discovery.accelerators.iter().filter(|accelerator| !served(accelerator));
    let error = accelerators.find_map(|accelerator| catalogue.supports(accelerator, version).err())?;
    Some(format!("the host has driver {version} under {root}, and {error}, and have it installed on the host"))
}
