//! Parsing and validation of the data files.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use gpu_operator_crd::policy::{Architecture, ModuleSupport};
use serde::{
    Deserialize,
    de::{IntoDeserializer, value::Error},
};
use thiserror::Error;

use crate::catalogue::{
    model::{
        self, Accelerator, ArchitectureEntry, BranchRange, Limit, PciDevice, Release, Subsystem, branch_of, parsed,
    },
    table::Catalogue,
};

pub(super) const BUILTIN: &str = include_str!("../../data/accelerators.yaml");
pub(super) const DESKTOP: &str = include_str!("../../data/desktop.txt");

#[derive(Debug, Error)]
pub enum CatalogueError {
    #[error("invalid catalogue of accelerators: {0}")]
    Shape(#[from] serde_yaml::Error),
    #[error("duplicate {what} {value} in the catalogue of accelerators")]
    Duplicate {
        /// The kind of value, such as `name or alias`.
        what: &'static str,
        value: String,
    },
    #[error("invalid value {value:?} in the catalogue of accelerators: expected {what}")]
    Illegal { what: &'static str, value: String },
    #[error("the catalogue of accelerators does not define architecture {0}")]
    UnknownArchitecture(Architecture),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ModelEntry {
    pub(super) name: String,
    pub(super) architecture: Architecture,
    pub(super) devices: Vec<DeviceEntry>,
    #[serde(default)]
    pub(super) aliases: Vec<String>,
    /// Overrides the architecture's.
    pub(super) first: Option<Limit>,
    /// Overrides the architecture's.
    pub(super) modules: Option<ModuleSupport>,
    /// Whether its drivers are published among those for desktop cards, where the name is misleading.
    pub(super) desktop: Option<bool>,
    pub(super) believed: Option<String>,
}

impl ModelEntry {
    /// Returns a model with the defaults of its architecture.
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

pub(super) fn illegal(what: &'static str, value: &str) -> CatalogueError {
    CatalogueError::Illegal { what, value: value.to_owned() }
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

/// CUDA versions by driver branch, and what of them is unverified, which is all.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CudaTable {
    believed: String,
    branches: BTreeMap<u16, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DriverEntry {
    version: String,
    os: Vec<String>,
    source: String,
    #[serde(default = "yes")]
    default: bool,
}

fn yes() -> bool {
    true
}

impl Catalogue {
    /// Reading the catalogue takes about a millisecond: read it once and pass it on.
    pub fn builtin() -> Result<Self, CatalogueError> {
        Self::from_files(BUILTIN, DESKTOP)
    }

    pub fn from_files(yaml: &str, desktop: &str) -> Result<Self, CatalogueError> {
        let file: File = serde_yaml::from_str(yaml)?;
        let models = file
            .models
            .into_iter()
            .chain(desktop_models(desktop)?)
            .map(|entry| accelerator(entry, &file.architectures))
            .collect::<Result<Vec<_>, _>>()?;
        let mut by_name = BTreeMap::new();
        let mut by_pci = BTreeMap::new();
        for (index, model) in models.iter().enumerate() {
            for word in std::iter::once(&model.name).chain(&model.aliases) {
                if !model::is_label_value(word) {
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
        let (architectures, CudaTable { believed: cuda_believed, branches: cuda }) = (file.architectures, file.cuda);
        Ok(Self {
            models,
            architectures,
            cuda,
            cuda_believed,
            releases: releases(file.drivers)?,
            switches,
            by_name,
            by_pci,
        })
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
        desktop: entry.desktop.unwrap_or_else(|| model::is_desktop(&entry.name)),
        name: entry.name,
        aliases: entry.aliases,
        architecture: entry.architecture.into(),
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
    for DriverEntry { version, os, source, default } in entries {
        let Some(numbers) = parsed(&version).filter(|numbers| numbers.parts() > 1) else {
            return Err(illegal("a full driver version", &version));
        };
        if let Some(nothing) = os.iter().find(|os| !model::is_label_value(os)) {
            return Err(illegal("the name of an operating system in image tags", nothing));
        }
        let release = Release { version: version.clone(), numbers: numbers.clone(), os, source, is_default: default };
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

// The table of desktop and workstation cards: for each architecture, a row per model. It is plain text instead of YAML because
// it is the largest part of the data, and every command parses it.

pub(super) fn desktop_models(text: &str) -> Result<Vec<ModelEntry>, CatalogueError> {
    let mut architecture = None;
    let mut models = Vec::new();
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let row = || illegal("a row of a name and PCI ids below the heading of an architecture", line);
        if !line.starts_with(' ') {
            let heading: Result<Architecture, Error> = Architecture::deserialize(line.into_deserializer());
            architecture = Some(heading.map_err(|_| illegal("the name of an architecture", line))?);
            continue;
        }
        let mut words = line.split_whitespace();
        let (name, ids) = (words.next().ok_or_else(row)?, words.collect::<Vec<_>>());
        if ids.is_empty() {
            return Err(row());
        }
        models.push(ModelEntry::of_table(name, architecture.ok_or_else(row)?, devices(name, &ids)));
    }
    Ok(models)
}

fn devices(name: &str, ids: &[&str]) -> Vec<DeviceEntry> {
    let memory_mib = name.split('-').find_map(|word| word.strip_suffix("gb")?.parse::<u32>().ok()).map(|gb| gb * 1024);
    ids.iter().map(|id| DeviceEntry { id: (*id).to_owned(), subsystem: None, memory_mib }).collect()
}
