//! The host's own driver: whether it is one that the node's GPUs work with. It is never changed, and the catalogue may not know
//! everything, so that this is said only of a node that is not ready by it.

use super::{driver::DriverChoice, member::Member};
use crate::catalogue::Catalogue;

/// Why the host's driver does not serve the node's GPUs, in a sentence; `None` where it does, or the driver is not the host's.
#[must_use]
pub fn misfit(catalogue: &Catalogue, member: &Member<'_>) -> Option<String> {
    let Some(DriverChoice::Preinstalled { root }) = member.driver() else {
        return None;
    };
    let installed = member.report()?.driver.installed.iter().find(|found| found.root == *root)?;
    let version = installed.version.as_str();
    let mut accelerators = member.discovery.accelerators.iter();
    let error = accelerators.find_map(|accelerator| catalogue.supports(accelerator, version).err())?;
    Some(format!(
        "the host has driver {version} under {root}, and {error}: install such a one on the host, or remove it there to have one of ours"
    ))
}
