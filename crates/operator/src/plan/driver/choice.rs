//! Where a node's driver comes from.

use gpu_operator_crd::{
    policy::{Driver, DriverSource},
    reason::Reason,
    report::Report,
};
use serde::Serialize;

use super::super::{discover::Discovery, variant::Fault};
use crate::catalogue::{Catalogue, Flavour, branch_of, common_module_flavour};

/// The folder into which NVIDIA's driver container binds its root.
pub const CONTAINER_ROOT: &str = "/run/nvidia/driver";

/// Where a node's driver comes from, once decided.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum DriverChoice {
    /// NVIDIA's container.
    Container {
        /// Full version.
        version: String,
        /// Suffix of the image's tag, such as `ubuntu22.04`.
        os: String,
        /// Whether the open kernel modules are installed.
        open: bool,
    },
    /// The host's own.
    Preinstalled {
        /// Folder under which the host keeps it.
        root: String,
    },
}

impl DriverChoice {
    /// Folder under which the driver's libraries lie on the host.
    #[must_use]
    pub fn root(&self) -> &str {
        match self {
            Self::Container { .. } => CONTAINER_ROOT,
            Self::Preinstalled { root } => root,
        }
    }

    /// The version that must be loaded, where we decide it.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Container { version, .. } => Some(version),
            Self::Preinstalled { .. } => None,
        }
    }
}

/// Decides where a node's driver comes from. `has_ours` says whether the node has a driver pod of ours by its label.
///
/// # Errors
/// A [`Fault`] where the policy asks for what this node cannot have.
pub fn choose(
    catalogue: &Catalogue,
    driver: &Driver,
    discovery: &Discovery<'_>,
    report: &Report,
    has_ours: bool,
) -> Result<DriverChoice, Fault> {
    // What lies under the container's root was put there by a container, ours or another's; it is not the host's.
    let foreign = report.driver.installed.iter().find(|installed| installed.root != CONTAINER_ROOT);
    // A driver of ours that works is not given up because somebody put libraries on the host.
    let works = |root: &str| {
        let found = report.driver.installed.iter().find(|installed| installed.root == root);
        found.is_some_and(|found| report.driver.loaded.as_ref() == Some(&found.version))
    };
    let foreign = foreign
        .filter(|_| driver.source.unwrap_or_default() != DriverSource::Auto || !(has_ours && works(CONTAINER_ROOT)));
    match (driver.source.unwrap_or_default(), foreign) {
        (DriverSource::Container, _) | (DriverSource::Auto, None) => container(catalogue, driver, discovery, report),
        (_, Some(installed)) => Ok(DriverChoice::Preinstalled { root: installed.root.clone() }),
        (DriverSource::Preinstalled, None) => Err(Fault {
            reason: Reason::DriverNotInstalled,
            message: "no driver is installed on the host; install one, or write source: Auto or Container".into(),
        }),
    }
}

/// The driver of a node on which somebody else's DaemonSet installs it, wherever that puts it.
#[must_use]
pub fn theirs(report: &Report) -> DriverChoice {
    let loaded = report.driver.installed.iter().find(|found| report.driver.loaded.as_ref() == Some(&found.version));
    let found = loaded.or(report.driver.installed.first());
    DriverChoice::Preinstalled { root: found.map_or_else(|| CONTAINER_ROOT.to_owned(), |found| found.root.clone()) }
}

fn container(
    catalogue: &Catalogue,
    driver: &Driver,
    discovery: &Discovery<'_>,
    report: &Report,
) -> Result<DriverChoice, Fault> {
    let unsupported = |message: String| Fault { reason: Reason::DriverUnsupported, message };
    let version = match &driver.version {
        Some(version) => version.clone(),
        None => catalogue
            .default_driver(&discovery.accelerators)
            .map_err(|error| unsupported(error.to_string()))?
            .version
            .clone(),
    };
    for accelerator in &discovery.accelerators {
        catalogue.supports(accelerator, &version).map_err(|error| unsupported(error.to_string()))?;
    }
    // There is one driver to a node, so all of its models get the same modules.
    let flavour = common_module_flavour(&discovery.accelerators, &version, driver.kernel_module.unwrap_or_default())
        .map_err(|error| unsupported(error.to_string()))?;
    let open = flavour == Flavour::Open;
    // A tag of the user's own names its operating system itself; the table of published images does not bind it.
    let own_image = driver.operand.image.as_ref().is_some_and(|image| image.tag.is_some() || image.digest.is_some());
    let os = if own_image {
        report.os.id.clone()
    } else {
        catalogue
            .driver_image_os(branch_of(&version).unwrap_or_default(), &report.os.id, &report.os.version_id)
            .map_err(|error| Fault { reason: Reason::NoDriverImageForOS, message: error.to_string() })?
    };
    Ok(DriverChoice::Container { version, os, open })
}
