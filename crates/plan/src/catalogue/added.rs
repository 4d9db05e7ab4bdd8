//! Models that policies add to the catalogue.

use gpu_operator_crd::policy::Model;
use thiserror::Error;

use crate::catalogue::{Accelerator, BranchRange, Catalogue, PciDevice, name::is_desktop};

/// Why a model cannot be added. The text says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Conflict {
    /// Its name is another model's, or another word for one.
    #[error("models: {name} is known already, as {known}; remove it, or write another name")]
    Name {
        /// The name.
        name: String,
        /// The known model.
        known: String,
    },
    /// Its PCI id is another model's.
    #[error("models: PCI id {id} of {name} is that of {known}; remove the id, or match {known}")]
    Device {
        /// The name.
        name: String,
        /// The PCI id.
        id: String,
        /// The known model.
        known: String,
    },
}

impl Catalogue {
    /// Adds a model; what is known already stays as it is. To add the same once more changes nothing.
    ///
    /// # Errors
    /// Where the catalogue says something else of its name or of one of its PCI ids.
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
        let known = self.architectures.iter().find(|known| known.name == *architecture);
        let (first, last) = (known.and_then(|known| known.first.as_ref()), known.and_then(|known| known.last.as_ref()));
        let ids = pci_ids.iter().filter_map(|id| u16::from_str_radix(id, 16).ok());
        Accelerator {
            name: name.clone(),
            aliases: Vec::new(),
            architecture: *architecture,
            devices: ids.map(|device_id| PciDevice { device_id, subsystem: None, memory_mib: *memory_mib }).collect(),
            memory_mib: *memory_mib,
            driver: BranchRange {
                first: driver.first_branch.or(first.map(|limit| limit.branch)),
                // A first branch of the user's own counts from its beginning.
                first_version: first.filter(|_| driver.first_branch.is_none()).and_then(|limit| limit.version.clone()),
                last: driver.last_branch.or(last.map(|limit| limit.branch)),
            },
            modules: (*modules).or(known.map(|known| known.modules)).unwrap_or(super::ModuleSupport::Either),
            desktop: is_desktop(name),
            believed: None,
        }
    }
}
