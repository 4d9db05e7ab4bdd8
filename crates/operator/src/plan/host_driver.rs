//! The host's own driver: whether it is one that the node's GPUs work with. It is never changed, and the catalogue may not know
//! everything, so that this is said only of a node that is not ready by it.

use gpu_operator_crd::policy::Stage;

use super::{
    driver::{DriverChoice, installed_by_gke},
    member::Member,
};
use crate::catalogue::Catalogue;

/// Why the host's driver does not serve the node's GPUs, in a sentence; `None` where it does, or the driver is not the host's.
#[must_use]
pub fn misfit(catalogue: &Catalogue, member: &Member<'_>) -> Option<String> {
    let Some(DriverChoice::Preinstalled { root }) = member.driver() else {
        return None;
    };
    let report = member.report()?;
    // Not the host's own: somebody's DaemonSet brings it, or GKE is about to.
    let theirs = member.foreign.theirs(Stage::Driver).is_some();
    let awaited = installed_by_gke(member.node).is_some() && report.driver.loaded.is_none();
    // GPUs that NVML has opened are served, whatever the catalogue knows.
    let served = !report.gpus.is_empty() && report.gpus.iter().all(|gpu| gpu.uuid.is_some());
    if theirs || awaited || served {
        return None;
    }
    let installed = report.driver.installed.iter().find(|found| found.root == *root)?;
    let version = installed.version.as_str();
    let mut accelerators = member.discovery.accelerators.iter();
    let error = accelerators.find_map(|accelerator| catalogue.supports(accelerator, version).err())?;
    Some(format!("the host has driver {version} under {root}, and {error}, and have it installed on the host"))
}
