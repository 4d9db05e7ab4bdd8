//! The MIG devices of each GPU of a node. The operator passes them to `nvml-probe mig` as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The number of MIG devices of each profile on one GPU, by NVML's profile names, such as `1g.10gb`. If empty, MIG is
/// disabled.
pub type GpuLayout = BTreeMap<String, u32>;

/// The MIG devices of each GPU of a node, such as `{"devices": {"0": {"1g.10gb": 7}}, "others": {"3g.40gb": 2}}`. By default
/// MIG is disabled.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(deny_unknown_fields)]
pub struct MigLayout {
    /// The layouts of single GPUs, by index: their position on the bus in the order of PCI addresses, from 0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<u32, GpuLayout>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub others: GpuLayout,
}

#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
#[error(
    "devicePlugin.mig.layout names GPU {index}, but the last GPU of this node has index {last}; correct its devices"
)]
pub struct NoSuchGpu {
    pub index: u32,
    /// The highest index on the node.
    pub last: u32,
}

impl MigLayout {
    pub fn of_gpu(&self, index: u32) -> &GpuLayout {
        self.devices.get(&index).unwrap_or(&self.others)
    }

    /// Returns whether MIG is disabled on every GPU.
    pub fn is_disabled(&self) -> bool {
        self.others.is_empty() && self.devices.values().all(BTreeMap::is_empty)
    }

    /// Checks the indices against the number of a node's GPUs.
    pub fn check(&self, gpus: u32) -> Result<(), NoSuchGpu> {
        match self.devices.last_key_value() {
            Some((&index, _)) if index >= gpus => Err(NoSuchGpu { index, last: gpus.saturating_sub(1) }),
            _ => Ok(()),
        }
    }
}
