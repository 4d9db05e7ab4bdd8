//! The version of a node's driver: the highest CUDA version that it supports, and whether it supports the node's GPUs.

use gpu_operator_crd::{gpunode::StageRevisions, keys, policy::Stage, report::NvmlState};

use crate::{
    assess::member::Member,
    catalogue::{Accelerator, Catalogue},
    desired::driver::{DriverChoice, choose::installed_by_gke},
};

// With the CUDA version on the node, images that need a newer one are detected before their pods fail. The catalogue knows it as soon
// as a driver is chosen, so publishing it needs no extra write.

/// The highest CUDA versions for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ceilings {
    wanted: Option<String>,
    /// Whether `wanted` is known before that driver is installed.
    foreseen: bool,
    /// That of the loaded driver.
    present: Option<String>,
    told: Option<String>,
}

pub fn ceilings(catalogue: &Catalogue, member: &Member<'_>) -> Ceilings {
    let of_version = |version: &str| catalogue.cuda_of(version).map(str::to_owned);
    let report = member.report;
    let reported = || report.and_then(|report| report.driver.cuda_version.clone());
    let loaded = report.and_then(|report| report.driver.loaded.as_deref());
    let present = loaded.and_then(|loaded| of_version(loaded).or_else(reported));
    let installed = |root: &str| {
        let under_root = report?.driver.installed.iter().find(|found| found.root == root)?;
        Some(under_root.version.as_str())
    };
    let wanted = member.driver().and_then(|choice| {
        choice.version().or_else(|| installed(choice.root())).and_then(of_version).or_else(reported)
    });
    let foreseen = member.driver().is_some_and(|choice| choice.version().is_some() || !choice.is_managed());
    Ceilings { wanted, foreseen, present, told: member.status().and_then(|status| status.cuda.clone()) }
}

impl Ceilings {
    /// Returns the version for the driver of the revisions `to_be`. A version that is unknown at the moment is left unchanged.
    pub fn of(&self, member: &Member<'_>, to_be: &StageRevisions) -> Option<String> {
        let Self { wanted, present, told, .. } = self;
        let moves = member.want().is_some_and(|want| want.driver == to_be.driver);
        if moves { wanted } else { present }.as_ref().or(told.as_ref()).cloned()
    }

    /// Returns the version for the node's label only if it was known when the driver was chosen: otherwise an installer that chooses the
    /// version itself would cost one more write per node.
    pub fn label(&self, member: &Member<'_>, to_be: &StageRevisions) -> Option<String> {
        if member.driver().is_some() {
            return self.of(member, to_be).filter(|_| self.foreseen);
        }
        // The node's driver is unknown at the moment, so its label stays.
        let node = member.node;
        node.labels
            .get(keys::CUDA_VERSION)
            .filter(|_| node.owned_labels.contains(keys::CUDA_VERSION))
            .map(ToString::to_string)
    }
}

// The host's own driver is never changed, and the catalogue may be incomplete, so a problem is reported only for a node that is not ready.

/// Returns why the host's driver does not support the node's GPUs.
pub fn host_driver_problem(catalogue: &Catalogue, member: &Member<'_>) -> Option<String> {
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
