//! The table that the data files are read into, and the queries of it.

use std::collections::BTreeMap;

use super::{
    model::{Accelerator, ArchitectureEntry, Release, Subsystem},
    version::branch_of,
};

/// Every accelerator that is known, and every driver version that is recommended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    pub(super) models: Vec<Accelerator>,
    pub(super) architectures: Vec<ArchitectureEntry>,
    /// Highest CUDA version by driver branch.
    pub(super) cuda: BTreeMap<u16, String>,
    pub(super) cuda_believed: String,
    /// In ascending order of the version.
    pub(super) releases: Vec<Release>,
    pub(super) switches: Vec<u16>,
    /// Index in `models` by canonical name and by alias.
    pub(super) by_name: BTreeMap<String, usize>,
    /// Index in `models` by PCI device id, with the subsystem where models share the id.
    pub(super) by_pci: BTreeMap<(u16, Option<Subsystem>), usize>,
}

impl Catalogue {
    /// The model of one of NVIDIA's PCI devices, by device id (without the vendor's `10de`) and, for products that share
    /// an id, subsystem. Without a subsystem, or with an unknown one, products that share an id are one model whose name
    /// contains all of them, such as `nvidia-a2-a16`.
    pub fn model_of_pci(&self, device_id: u16, subsystem: Option<Subsystem>) -> Option<&Accelerator> {
        let exact = subsystem.and_then(|s| self.by_pci.get(&(device_id, Some(s))));
        self.models.get(*exact.or_else(|| self.by_pci.get(&(device_id, None)))?)
    }

    /// The model of a canonical name, or of another cloud's word for it.
    pub fn model(&self, name_or_alias: &str) -> Option<&Accelerator> {
        self.models.get(*self.by_name.get(name_or_alias)?)
    }

    /// The highest CUDA version that a driver's branch serves, as far as the catalogue knows.
    pub fn cuda_of(&self, version: &str) -> Option<&str> {
        self.cuda.get(&branch_of(version)?).map(String::as_str)
    }

    /// What of the CUDA versions is unverified.
    pub fn cuda_believed(&self) -> &str {
        &self.cuda_believed
    }

    /// All models, in the order of the data files.
    pub fn models(&self) -> impl Iterator<Item = &Accelerator> {
        self.models.iter()
    }

    /// Whether one of NVIDIA's PCI devices, by device id, is an `NVSwitch`: on the bus, but no GPU.
    pub fn is_switch(&self, device_id: u16) -> bool {
        self.switches.contains(&device_id)
    }
}
