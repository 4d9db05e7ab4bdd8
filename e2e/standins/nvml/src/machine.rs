//! The file with the GPUs.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;

use crate::{mig::Mig, model::Model, readings::Readings, status::Status};

/// The content of `gpus.json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// The CUDA version that the driver supports, `major.minor`.
    #[serde(default = "default_cuda")]
    pub cuda: String,
    /// The GPUs in NVML's index order.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// While true, every call blocks, like calls to a driver that hangs.
    #[serde(default)]
    pub hang: bool,
    /// The next call ends the process by SIGSEGV.
    #[serde(default)]
    pub crash: bool,
    /// The additional duration of each call, in milliseconds.
    #[serde(default)]
    pub slow_millis: u64,
    /// NVML's return code of `nvmlInit`.
    #[serde(default)]
    pub init_error: Option<u32>,
    /// CUDA's return code of `cuInit`.
    #[serde(default)]
    pub cuda_error: u32,
    /// Overrides [`Device::healthy`], by UUID.
    #[serde(default)]
    pub healthy: BTreeMap<String, bool>,
}

/// One GPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// The PCI address, `domain:bus:device.function` in hexadecimal; it identifies the GPU.
    pub pci_address: String,
    /// `0x`, the PCI device id and the vendor id 10DE, as NVML packs them.
    pub pci_device_id: String,
    /// The product's name.
    pub name: String,
    /// `GPU-` and a UUID.
    pub uuid: String,
    /// Memory in MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    /// N of the device node `/dev/nvidiaN`.
    pub minor: u32,
    /// If false, the GPU delivers [`Device::xid`] once to every event set that is registered for its events.
    #[serde(default = "yes")]
    pub healthy: bool,
    /// The XID that an unhealthy GPU reports.
    #[serde(default = "default_xid")]
    pub xid: u64,
    /// CUDA compute capability, `major.minor`. Defaults to that of its model.
    #[serde(default)]
    pub compute_capability: Option<String>,
    /// The board's serial number; `None` on consumer boards.
    #[serde(default)]
    pub serial: Option<String>,
    /// NVML's return code of every call for this GPU, including the call that opens it: 15 for a lost GPU, 16 for a GPU
    /// that must be reset, and so on.
    #[serde(default)]
    pub error: Option<u32>,
    /// Further XIDs that it delivers.
    #[serde(default)]
    pub xids: Vec<Xid>,
    /// The state of MIG; without it MIG is permanently off, if the model supports it.
    #[serde(default)]
    pub mig: Option<Mig>,
    /// The readings of its state.
    #[serde(default)]
    pub readings: Readings,
}

/// An XID that a GPU delivers to the event sets that were registered before it was in the list.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Xid {
    /// The number.
    pub xid: u64,
    /// The rate per second while it is in the list; if not set, it is delivered once.
    #[serde(default)]
    pub per_second: u32,
    /// Distinguishes entries with the same number, each of which is delivered.
    #[serde(default)]
    pub id: u64,
}

impl Xid {
    /// Returns how often it has been delivered after this time in the list.
    pub fn due(&self, since: Duration) -> u64 {
        let repeated = since.as_millis() * u128::from(self.per_second) / 1000;
        u64::try_from(repeated).unwrap_or(u64::MAX).max(1)
    }
}

/// The parts of a PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    pub domain: u32,
    /// Bus in the domain.
    pub bus: u32,
    /// Device on the bus.
    pub device: u32,
}

impl PciAddress {
    /// Parses `domain:bus:device.function`, whatever the number of leading zeros.
    pub fn parse(text: &str) -> Option<Self> {
        let (place, _function) = text.rsplit_once('.')?;
        let mut parts = place.split(':').map(|part| u32::from_str_radix(part, 16).ok());
        let address = Self { domain: parts.next()??, bus: parts.next()??, device: parts.next()?? };
        parts.next().is_none().then_some(address)
    }
}

impl Machine {
    /// Returns whether `device` is healthy.
    pub fn is_healthy(&self, device: &Device) -> bool {
        self.healthy.get(&device.uuid).copied().unwrap_or(device.healthy)
    }

    /// Returns the CUDA version as NVML's number, major × 1000 + minor × 10; `None` if the file's version is invalid.
    pub fn cuda_number(&self) -> Option<i32> {
        let (major, minor) = pair(&self.cuda)?;
        major.checked_mul(1000)?.checked_add(minor.checked_mul(10)?)
    }
}

impl Device {
    /// Checks that calls for it succeed.
    pub fn answers(&self) -> Result<(), Status> {
        self.error.map_or(Ok(()), |code| Err(Status::from_code(code)))
    }

    /// Returns the packed PCI device and vendor id; `None` if the file's id is invalid.
    pub fn packed_id(&self) -> Option<u32> {
        let digits = self.pci_device_id.trim_start_matches("0x").trim_start_matches("0X");
        u32::from_str_radix(digits, 16).ok()
    }

    pub fn model(&self) -> Model {
        let id = self.packed_id().and_then(|packed| u16::try_from(packed >> 16).ok());
        Model::of(id.unwrap_or_default())
    }

    /// Returns whether it supports MIG, even if MIG is off.
    pub fn has_mig(&self) -> bool {
        self.mig.is_some() || self.model().mig.is_some()
    }

    /// Returns the major and minor compute capability; `None` if the file's capability is invalid.
    pub fn capability(&self) -> Option<(i32, i32)> {
        self.compute_capability.as_deref().map_or_else(|| Some(self.model().capability), pair)
    }
}

fn pair(version: &str) -> Option<(i32, i32)> {
    let (major, minor) = version.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn default_cuda() -> String {
    "13.1".into()
}

/// "GPU has fallen off the bus": fatal for all programs.
fn default_xid() -> u64 {
    79
}

fn yes() -> bool {
    true
}
