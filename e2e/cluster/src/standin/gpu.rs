//! GPUs of a stand-in machine.

use serde::Serialize;
use serde_json::{Map, Value};

/// One GPU, as the stand-in NVML library reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// The PCI address, such as `0000:06:00.0`.
    pub pci_address: String,
    /// The PCI device id followed by NVIDIA's vendor id, such as `0x233010DE`.
    pub pci_device_id: String,
    /// The product's name, such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// `GPU-` followed by a UUID.
    pub uuid: String,
    /// The memory, in MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    /// The number N of the device node `/dev/nvidiaN`.
    pub minor: u32,
    /// Whether it works. An unhealthy GPU reports an XID error.
    pub healthy: bool,
    /// Further fields of the GPU in the stand-in library's `gpus.json`: faults and readings.
    #[serde(flatten)]
    pub state: Map<String, Value>,
}

impl Gpu {
    /// Returns `count` GPUs of one product, each with its own address and UUID. `device` is the PCI device id, such as
    /// `0x2330`.
    pub fn several(count: u32, name: &str, device: u16, memory_mib: u64) -> Vec<Self> {
        let gpu = |minor| Self {
            pci_address: format!("0000:{:02x}:00.0", 6 + minor),
            pci_device_id: format!("0x{device:04X}10DE"),
            name: name.to_owned(),
            uuid: format!("GPU-00000000-0000-4000-8000-{device:04x}{minor:08x}"),
            memory_mib,
            minor,
            healthy: true,
            state: Map::new(),
        };
        (0..count).map(gpu).collect()
    }

    /// Returns `count` H100 GPUs.
    pub fn h100(count: u32) -> Vec<Self> {
        Self::several(count, "NVIDIA H100 80GB HBM3", 0x2330, 81_559)
    }
}
