//! What NVML reports of a node's GPUs.

use gpu_operator_crd::{health::CauseKind, report::MigDevices};
use serde::{Deserialize, Serialize};

use super::{mig::MigGpu, readings::Readings};

/// One reading of every GPU that NVML knows.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Inventory {
    /// The version of the driver that answers.
    pub driver_version: String,
    /// The highest CUDA version that it supports, such as `13.1`, if reported.
    pub cuda_version: Option<String>,
    /// The number of GPUs that NVML counts.
    pub count: u32,
    /// The GPUs that could be opened.
    pub gpus: Vec<NvmlGpu>,
    /// The GPUs on the bus that could not be opened.
    pub refused: Vec<RefusedGpu>,
    /// The XIDs that NVML has reported since the previous reading.
    pub xids: Vec<NvmlXid>,
}

/// What NVML reports of one GPU. A value that NVML does not provide is absent.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct NvmlGpu {
    /// PCI address as sysfs writes it.
    pub pci_address: String,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// NVIDIA's product name, such as `NVIDIA H100 80GB HBM3`.
    pub name: Option<String>,
    /// Frame buffer, in MiB.
    pub memory_mib: Option<u64>,
    /// CUDA compute capability, such as `9.0`.
    pub compute_capability: Option<String>,
    /// Whether it supports MIG.
    pub mig_capable: Option<bool>,
    /// Its cluster and clique in the NVLink fabric that it has joined.
    pub fabric_clique: Option<String>,
    /// Its MIG state; absent if it does not support MIG, or if that was not requested.
    pub mig: Option<MigGpu>,
    /// Its MIG devices, if MIG is enabled.
    pub mig_devices: Option<Vec<MigDevices>>,
    /// NVML's index of it, which can be another one after a reboot.
    pub index: Option<u32>,
    /// The number in `/dev/nvidia<number>`.
    pub minor: Option<u32>,
    /// The ids of its MIG devices, if MIG is enabled.
    pub mig_ids: Vec<MigId>,
    /// Its current readings.
    pub readings: Readings,
}

/// What identifies a MIG device.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase", default)]
pub struct MigId {
    /// `MIG-…`.
    pub uuid: String,
    /// NVML's id of its GPU instance.
    pub gpu_instance: Option<u32>,
    /// The name of its profile; empty if it cannot be read.
    pub profile: String,
}

/// A GPU on the bus that NVML does not open.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RefusedGpu {
    /// PCI address as sysfs writes it.
    pub pci_address: String,
    /// What that means for its health.
    pub kind: CauseKind,
    /// NVML's message.
    pub message: String,
}

/// XIDs of one number and GPU.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NvmlXid {
    /// PCI address as sysfs writes it.
    pub pci_address: String,
    /// The number.
    pub xid: u16,
    /// How often it occurred.
    pub count: u64,
}
