//! Modes of a GPU that programs can change. They are stored in a file next to `gpus.json`, so that all programs see the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{library::Library, machine::Device, status::Status};

/// The file, in the stand-in's folder: by PCI address the modes that were set.
const FILE: &str = "modes.json";

/// The modes of a GPU; `None` for modes that were not set.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Modes {
    /// NVML's compute mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<u32>,
    /// Persistence mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistence: Option<bool>,
}

impl Library {
    /// The modes of a GPU: as `gpus.json` gives them, else as they were set last, else those of a GPU with a running
    /// nvidia-persistenced.
    ///
    /// # Errors
    /// [`Status::Unknown`] if the file is broken.
    pub fn modes(&self, device: &Device) -> Result<(u32, bool), Status> {
        let set = self.set_modes()?.remove(&device.pci_address).unwrap_or_default();
        let compute = device.readings.compute_mode.or(set.compute).unwrap_or_default();
        let persistence = device.readings.persistence.or(set.persistence).unwrap_or(true);
        Ok((compute, persistence))
    }

    /// Sets what is given of a GPU's modes.
    ///
    /// # Errors
    /// [`Status::NoPermission`] where the stand-in's folder cannot be written, and those of [`Library::modes`].
    pub fn set(&self, device: &Device, modes: Modes) -> Result<(), Status> {
        let mut all = self.set_modes()?;
        let entry = all.entry(device.pci_address.clone()).or_default();
        entry.compute = modes.compute.or(entry.compute);
        entry.persistence = modes.persistence.or(entry.persistence);
        self.replace(FILE, &all)
    }

    fn set_modes(&self) -> Result<BTreeMap<String, Modes>, Status> {
        let Ok(text) = self.read(FILE) else { return Ok(BTreeMap::new()) };
        serde_json::from_str(&text).map_err(|_| Status::Unknown)
    }
}
