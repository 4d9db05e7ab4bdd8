//! Models that policies add to the catalogue.

use gpu_operator_crd::policy::{Model, ModuleSupport};
use thiserror::Error;

use super::{
    model::{Accelerator, BranchRange, PciDevice},
    name::is_desktop,
    table::Catalogue,
};

/// A reason why a model cannot be added. The message contains what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Conflict {
    #[error("models: {name} is already in the catalogue as {known}; remove the model, or use another name")]
    Name {
        name: String,
        /// The known model.
        known: String,
    },
    #[error("models: PCI id {id} of {name} belongs to {known}; remove the id, or match {known}")]
    Device {
        name: String,
        /// The PCI id.
        id: String,
        /// The known model.
        known: String,
    },
}

impl Catalogue {
    /// Adds a model. Known models are not changed, and adding the same model again changes nothing.
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
