use std::collections::BTreeMap;

use gpu_operator_crd::policy::{Model, ModuleSupport};
use thiserror::Error;

use crate::catalogue::model::{
    Accelerator, ArchitectureEntry, BranchRange, PciDevice, Release, Subsystem, branch_of, is_desktop,
};

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
    /// Returns the model of a device id (without the vendor's `10de`) and subsystem. Without a known subsystem, products that share an id
    /// are one model whose name contains all of them, such as `nvidia-a2-a16`.
    pub fn model_of_pci(&self, device_id: u16, subsystem: Option<Subsystem>) -> Option<&Accelerator> {
        let exact = subsystem.and_then(|s| self.by_pci.get(&(device_id, Some(s))));
        self.models.get(*exact.or_else(|| self.by_pci.get(&(device_id, None)))?)
    }

    /// The model of a canonical name, or of another cloud's word for it.
    pub fn model(&self, name_or_alias: &str) -> Option<&Accelerator> {
        self.models.get(*self.by_name.get(name_or_alias)?)
    }

    /// Returns the highest CUDA version that a driver's branch serves, if known.
    pub fn cuda_of(&self, version: &str) -> Option<&str> {
        self.cuda.get(&branch_of(version)?).map(String::as_str)
    }

    pub fn cuda_believed(&self) -> &str {
        &self.cuda_believed
    }

    pub fn models(&self) -> impl Iterator<Item = &Accelerator> {
        self.models.iter()
    }

    /// Whether a device is an `NVSwitch`: on the bus, but no GPU.
    pub fn is_switch(&self, device_id: u16) -> bool {
        self.switches.contains(&device_id)
    }
}

/// A reason why a model cannot be added. The message contains what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Conflict {
    #[error("models: {name} is already in the catalogue as {known}; remove the model, or use another name")]
    Name { name: String, known: String },
    #[error("models: PCI id {id} of {name} belongs to {known}; remove the id, or match {known}")]
    Device { name: String, id: String, known: String },
}

impl Catalogue {
    /// Known models are not changed, and adding the same model again changes nothing.
    pub fn add(&mut self, model: &Model) -> Result<(), Conflict> {
        let added = self.accelerator(model);
        if self.model(&model.name) == Some(&added) {
            return Ok(());
        }
        let name = || model.name.clone();
        if let Some(known) = self.model(&model.name) {
            return Err(Conflict::Name { name: name(), known: known.title() });
        }
        for (id, device) in model.pci_ids.iter().zip(&added.devices) {
            if let Some(known) = self.model_of_pci(device.device_id, None) {
                return Err(Conflict::Device { name: name(), id: id.clone(), known: known.name.clone() });
            }
        }
        let index = self.models.len();
        self.by_name.insert(name(), index);
        self.by_pci.extend(added.devices.iter().map(|device| ((device.device_id, None), index)));
        self.models.push(added);
        Ok(())
    }

    fn accelerator(&self, model: &Model) -> Accelerator {
        let Model { name, pci_ids, architecture, memory_mib, driver, modules } = model;
        let known = self.architectures.iter().find(|known| *architecture == known.name);
        let (first, last) = (known.and_then(|known| known.first.as_ref()), known.and_then(|known| known.last.as_ref()));
        let ids = pci_ids.iter().filter_map(|id| u16::from_str_radix(id, 16).ok());
        Accelerator {
            name: name.clone(),
            aliases: Vec::new(),
            architecture: architecture.clone(),
            devices: ids.map(|device_id| PciDevice { device_id, subsystem: None, memory_mib: *memory_mib }).collect(),
            memory_mib: *memory_mib,
            driver: BranchRange {
                first: driver.first_branch.or(first.map(|limit| limit.branch)),
                // A first branch that the user sets is supported from its first version on.
                first_version: first.filter(|_| driver.first_branch.is_none()).and_then(|limit| limit.version.clone()),
                last: driver.last_branch.or(last.map(|limit| limit.branch)),
            },
            modules: (*modules).or(known.map(|known| known.modules)).unwrap_or(ModuleSupport::Either),
            desktop: is_desktop(name),
            believed: None,
        }
    }
}
