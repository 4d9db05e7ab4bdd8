//! Modes of a GPU that programs can change. They are stored in a file next to `gpus.json`, so that all programs see the
//! same.

use serde::{Deserialize, Serialize};

use crate::{library::Library, machine::Device, status::Status};

/// The file in the stand-in's folder, with the modes that were set, by PCI address.
const FILE: &str = "modes.json";

/// The modes of a GPU; `None` for modes that were not set.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Modes {
    /// NVML's compute mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistence: Option<bool>,
}

impl Library {
    /// Returns the compute mode and the persistence mode of a GPU: those in `gpus.json`, otherwise those that were set
    /// last, otherwise those of a GPU with a running nvidia-persistenced.
    pub fn modes(&self, device: &Device) -> Result<(u32, bool), Status> {
        let set = self.stored::<Modes>(FILE)?.remove(&device.pci_address).unwrap_or_default();
        let compute = device.readings.compute_mode.or(set.compute).unwrap_or_default();
        let persistence = device.readings.persistence.or(set.persistence).unwrap_or(true);
        Ok((compute, persistence))
    }

    /// Sets the given modes of a GPU; `None` leaves a mode unchanged.
    pub fn set(&self, device: &Device, modes: Modes) -> Result<(), Status> {
        let mut all = self.stored::<Modes>(FILE)?;
        let entry = all.entry(device.pci_address.clone()).or_default();
        entry.compute = modes.compute.or(entry.compute);
        entry.persistence = modes.persistence.or(entry.persistence);
        self.replace(FILE, &all)
    }
}
