//! Variants: what a kind of node in a pool wants of each stage, and the names of the DaemonSets that give it.
//!
//! A node's facts enter only as a [`VariantKey`], so that nodes that agree on it share their DaemonSets, and a node
//! that joins or changes can change nobody else's.

use gpu_operator_crd::{
    ClusterGpuPolicy,
    gpunode::Groups,
    policy::{Driver, DriverSource, Operand, Pool, Stage},
    reason::Reason,
    report::Report,
};
use serde::Serialize;

use super::{discover::Discovery, hash, images, pool};
use crate::{
    catalogue::{Catalogue, Flavour, branch_of, common_module_flavour},
    world::NodeFacts,
};

/// The folder into which NVIDIA's driver container binds its root.
pub const CONTAINER_ROOT: &str = "/run/nvidia/driver";
/// A pool's share of a group's name; the rest is a hash.
const SLUG: usize = 30;

/// Why a node cannot be given what its policy asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The class.
    pub reason: Reason,
    /// What to write or do instead.
    pub message: String,
}

/// All that a variant depends on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VariantKey {
    /// The policy's name.
    pub policy: String,
    /// The pool's name.
    pub pool: String,
    /// Whether the user named it: a pool may bear the name of a model, whose implicit pool is another one.
    pub named: bool,
    /// The node's driver.
    pub driver: DriverChoice,
    /// Processor architecture.
    pub arch: String,
}

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

/// One stage of a variant, resolved: what its container is started with. All of it is disruptive to change, and so
/// goes into the revision; what is not (resources, tolerations, …) is not here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageSpec {
    /// The stage.
    pub stage: Stage,
    /// Image reference.
    pub image: String,
    /// The user's environment, arguments and resources; resources are left out of the revision.
    #[serde(serialize_with = "without_resources")]
    pub operand: Operand,
}

/// What a kind of node in a pool wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// What it depends on.
    pub key: VariantKey,
    /// The stages that are ours to install, with the group of each.
    pub stages: Vec<(String, StageSpec)>,
}

impl Variant {
    /// The group of each stage.
    #[must_use]
    pub fn groups(&self) -> Groups {
        let mut groups = Groups::default();
        for (group, spec) in &self.stages {
            *slot(&mut groups, spec.stage) = Some(group.clone());
        }
        groups
    }
}

/// The group of one stage.
pub fn slot(groups: &mut Groups, stage: Stage) -> &mut Option<String> {
    match stage {
        Stage::Driver => &mut groups.driver,
        Stage::Toolkit => &mut groups.toolkit,
        Stage::DevicePlugin => &mut groups.device_plugin,
    }
}

/// The group of one stage.
#[must_use]
pub fn group(groups: &Groups, stage: Stage) -> Option<&str> {
    match stage {
        Stage::Driver => groups.driver.as_deref(),
        Stage::Toolkit => groups.toolkit.as_deref(),
        Stage::DevicePlugin => groups.device_plugin.as_deref(),
    }
}

/// A DaemonSet's name: its stage and group.
#[must_use]
pub fn daemon_set_name(stage: Stage, group: &str) -> String {
    format!("{}-{group}", stage.as_str())
}

/// Decides where a node's driver comes from. `has_ours` says whether the node has a driver pod of ours by its label.
///
/// # Errors
/// A [`Fault`] where the policy asks for what this node cannot have.
pub fn choose_driver(
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

/// The key of a node's variant.
#[must_use]
pub fn key(policy: &str, pool: &str, named: bool, driver: DriverChoice, node: &NodeFacts) -> VariantKey {
    VariantKey { policy: policy.to_owned(), pool: pool.to_owned(), named, driver, arch: node.arch.to_string() }
}

/// Resolves a variant: images, environments and group names of its stages.
#[must_use]
pub fn resolve(policy: &ClusterGpuPolicy, pool: Option<&Pool>, key: VariantKey) -> Variant {
    let images = &policy.spec.images;
    let defaults = &policy.spec.defaults;
    let mut specs = Vec::new();
    if let DriverChoice::Container { version, os, .. } = &key.driver {
        let driver = pool::driver(policy, pool);
        let tag = format!("{version}-{os}");
        let image = images::reference(images, driver.operand.image.as_ref(), images::DRIVER, &tag);
        specs.push(StageSpec { stage: Stage::Driver, image, operand: driver.operand });
    }
    for (stage, (path, tag), operand) in [
        (Stage::Toolkit, images::TOOLKIT, pool::operand(&defaults.toolkit, pool.map(|pool| &pool.toolkit))),
        (
            Stage::DevicePlugin,
            images::DEVICE_PLUGIN,
            pool::operand(&defaults.device_plugin, pool.map(|pool| &pool.device_plugin)),
        ),
    ] {
        specs.push(StageSpec { stage, image: images::reference(images, operand.image.as_ref(), path, tag), operand });
    }
    let stages = specs.into_iter().map(|spec| (group_name(&key, &spec), spec)).collect();
    Variant { key, stages }
}

/// A readable beginning and a hash of everything that makes this revision: the value of the node's label.
fn group_name(key: &VariantKey, spec: &StageSpec) -> String {
    let digest = hash::short(&(&key.policy, &key.pool, key.named, &key.driver, &key.arch, spec), 8);
    let slug: String =
        key.pool.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(SLUG).collect();
    format!("{}-{digest}", slug.trim_matches('-'))
}

fn without_resources<S: serde::Serializer>(operand: &Operand, serializer: S) -> Result<S::Ok, S::Error> {
    Operand { resources: None, ..operand.clone() }.serialize(serializer)
}
