//! Parsing and validation of the data files.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use serde::Deserialize;
use thiserror::Error;

use crate::catalogue::{
    Accelerator, Architecture, BranchRange, Catalogue, ModuleSupport, PciDevice, Release, Subsystem,
    branch::{branch_of, parsed},
    desktop, name,
};

/// An error in the catalogue's data files.
#[derive(Debug, Error)]
pub enum CatalogueError {
    /// The text is not YAML, or does not have the catalogue's structure.
    #[error("invalid catalogue of accelerators: {0}")]
    Shape(#[from] serde_yaml::Error),
    /// A value that must be unique occurs twice.
    #[error("duplicate {what} {value} in the catalogue of accelerators")]
    Duplicate {
        /// The kind of value, such as `name or alias`.
        what: &'static str,
        /// The value.
        value: String,
    },
    /// A value is invalid.
    #[error("invalid value {value:?} in the catalogue of accelerators: expected {what}")]
    Illegal {
        /// The expected kind of value.
        what: &'static str,
        /// The value.
        value: String,
    },
    /// A model has an architecture that is not defined.
    #[error("the catalogue of accelerators does not define architecture {0}")]
    UnknownArchitecture(Architecture),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    architectures: Vec<ArchitectureEntry>,
    drivers: Vec<DriverEntry>,
    cuda: CudaTable,
    switches: Vec<String>,
    models: Vec<ModelEntry>,
}

/// Defaults for the models of an architecture.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ArchitectureEntry {
    pub(super) name: Architecture,
    pub(super) first: Option<Limit>,
    pub(super) last: Option<Limit>,
    pub(super) modules: ModuleSupport,
}

/// CUDA versions by driver branch. All of them are unverified.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CudaTable {
    #[serde(rename = "believed")]
    _believed: String,
    branches: BTreeMap<u16, String>,
}

/// The first or the last branch that supports an architecture or a model.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Limit {
    pub(super) branch: u16,
    pub(super) version: Option<String>,
    believed: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DriverEntry {
    version: String,
    os: Vec<String>,
    source: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ModelEntry {
    name: String,
    architecture: Architecture,
    devices: Vec<DeviceEntry>,
    #[serde(default)]
    aliases: Vec<String>,
    /// Overrides the architecture's first branch.
    first: Option<Limit>,
    /// Overrides the architecture's kernel modules.
    modules: Option<ModuleSupport>,
    /// Whether its drivers are published among those for desktop cards; defaults to what the name implies.
    desktop: Option<bool>,
    believed: Option<String>,
}

impl ModelEntry {
    /// Returns a model that only has its architecture's defaults.
    pub(super) fn of_table(name: &str, architecture: Architecture, devices: Vec<DeviceEntry>) -> Self {
        let (name, aliases) = (name.to_owned(), Vec::new());
        Self { name, architecture, devices, aliases, first: None, modules: None, desktop: Some(true), believed: None }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DeviceEntry {
    pub(super) id: String,
    pub(super) subsystem: Option<String>,
    pub(super) memory_mib: Option<u32>,
}

impl Catalogue {
    /// Parses a catalogue from the data file and the table of desktop cards.
    pub(super) fn from_files(yaml: &str, desktop: &str) -> Result<Self, CatalogueError> {
        let file: File = serde_yaml::from_str(yaml)?;
        let models = file
            .models
            .into_iter()
            .chain(desktop::models(desktop)?)
            .map(|entry| accelerator(entry, &file.architectures))
            .collect::<Result<Vec<_>, _>>()?;
        let mut by_name = BTreeMap::new();
        let mut by_pci = BTreeMap::new();
        for (index, model) in models.iter().enumerate() {
            for word in std::iter::once(&model.name).chain(&model.aliases) {
                if !name::is_label_value(word) {
                    return Err(illegal("a legal label value", word));
                }
                insert_once(&mut by_name, word.clone(), index, "name or alias", word)?;
            }
            for device in &model.devices {
                let key = (device.device_id, device.subsystem);
                insert_once(&mut by_pci, key, index, "PCI device", &format!("{key:x?}"))?;
            }
        }
        let switches = file.switches.iter().map(|id| pci_id(id)).collect::<Result<Vec<_>, _>>()?;
        if let Some(id) = switches.iter().find(|id| by_pci.contains_key(&(**id, None))) {
            return Err(CatalogueError::Duplicate { what: "PCI device", value: format!("{id:04x}") });
        }
        let (architectures, cuda) = (file.architectures, file.cuda.branches);
        Ok(Self { models, architectures, cuda, releases: releases(file.drivers)?, switches, by_name, by_pci })
    }
}

fn accelerator(entry: ModelEntry, architectures: &[ArchitectureEntry]) -> Result<Accelerator, CatalogueError> {
    let architecture = architectures
        .iter()
        .find(|a| a.name == entry.architecture)
        .ok_or(CatalogueError::UnknownArchitecture(entry.architecture))?;
    let devices = entry.devices.iter().map(device).collect::<Result<Vec<_>, _>>()?;
    let sizes: BTreeSet<_> = devices.iter().map(|d| d.memory_mib).collect();
    let first = entry.first.or_else(|| architecture.first.clone());
    let last = architecture.last.clone();
    if let Some(Limit { branch, version: Some(version), .. }) = &first
        && branch_of(version) != Some(*branch)
    {
        return Err(illegal("a version of its branch", version));
    }
    let believed: Vec<_> =
        [&entry.believed, &mark(first.as_ref()), &mark(last.as_ref())].into_iter().filter_map(Clone::clone).collect();
    Ok(Accelerator {
        desktop: entry.desktop.unwrap_or_else(|| name::is_desktop(&entry.name)),
        name: entry.name,
        aliases: entry.aliases,
        architecture: entry.architecture,
        // Variants with different sizes have no common size.
        memory_mib: if sizes.len() == 1 { sizes.into_iter().next().flatten() } else { None },
        devices,
        driver: BranchRange {
            first: first.as_ref().map(|l| l.branch),
            first_version: first.and_then(|l| l.version),
            last: last.map(|l| l.branch),
        },
        modules: entry.modules.unwrap_or(architecture.modules),
        believed: if believed.is_empty() { None } else { Some(believed.join("; ")) },
    })
}

fn mark(limit: Option<&Limit>) -> Option<String> {
    limit.and_then(|l| l.believed.clone())
}

fn device(entry: &DeviceEntry) -> Result<PciDevice, CatalogueError> {
    let subsystem = match &entry.subsystem {
        None => None,
        Some(text) => Some(text.parse::<Subsystem>().map_err(|_| illegal("a PCI subsystem such as 10de:157e", text))?),
    };
    Ok(PciDevice { device_id: pci_id(&entry.id)?, subsystem, memory_mib: entry.memory_mib })
}

fn pci_id(text: &str) -> Result<u16, CatalogueError> {
    match u16::from_str_radix(text, 16) {
        Ok(id) if text.len() == 4 => Ok(id),
        _ => Err(illegal("a PCI device id of four hexadecimal digits", text)),
    }
}

fn releases(entries: Vec<DriverEntry>) -> Result<Vec<Release>, CatalogueError> {
    let mut releases = BTreeMap::new();
    for DriverEntry { version, os, source } in entries {
        let Some((numbers, branch)) = parsed(&version).zip(branch_of(&version)).filter(|_| version.contains('.'))
        else {
            return Err(illegal("a full driver version", &version));
        };
        if let Some(nothing) = os.iter().find(|os| !name::is_label_value(os)) {
            return Err(illegal("the name of an operating system in image tags", nothing));
        }
        let release = Release { branch, version: version.clone(), os, source };
        insert_once(&mut releases, numbers, release, "driver", &version)?;
    }
    Ok(releases.into_values().collect())
}

fn insert_once<K: Ord, V>(
    map: &mut BTreeMap<K, V>,
    key: K,
    value: V,
    what: &'static str,
    shown: &str,
) -> Result<(), CatalogueError> {
    match map.entry(key) {
        Entry::Occupied(_) => Err(CatalogueError::Duplicate { what, value: shown.to_owned() }),
        Entry::Vacant(vacant) => {
            vacant.insert(value);
            Ok(())
        }
    }
}

pub(super) fn illegal(what: &'static str, value: &str) -> CatalogueError {
    CatalogueError::Illegal { what, value: value.to_owned() }
}
