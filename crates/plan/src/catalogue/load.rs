//! Parsing and validation of the data files.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use serde::Deserialize;

use super::{
    desktop,
    entries::{CatalogueError, DeviceEntry, ModelEntry, illegal},
    model::{Accelerator, ArchitectureEntry, BranchRange, Limit, PciDevice, Release, Subsystem},
    name,
    table::Catalogue,
    version::{branch_of, parsed},
};

/// The data file.
pub(super) const BUILTIN: &str = include_str!("../../data/accelerators.yaml");
/// The table of desktop cards.
pub(super) const DESKTOP: &str = include_str!("../../data/desktop.txt");

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
}

impl Catalogue {
    /// The catalogue that is built into the operator. Reading it takes about a millisecond: read it once and pass it on.
    pub fn builtin() -> Result<Self, CatalogueError> {
        Self::from_files(BUILTIN, DESKTOP)
    }

    /// Reads a catalogue from the data file and the table of desktop cards.
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
        desktop: entry.desktop.unwrap_or_else(|| name::is_desktop(&entry.name)),
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
    for DriverEntry { version, os, source } in entries {
        let Some(numbers) = parsed(&version).filter(|numbers| numbers.parts() > 1) else {
            return Err(illegal("a full driver version", &version));
        };
        if let Some(nothing) = os.iter().find(|os| !name::is_label_value(os)) {
            return Err(illegal("the name of an operating system in image tags", nothing));
        }
        let release = Release { version: version.clone(), numbers: numbers.clone(), os, source };
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
