//! The protocol between the probe and its NVML child. A request is one line: the PCI addresses of the GPUs on the bus,
//! or one step of a GPU's MIG layout. The response is one line: what NVML reports of the GPUs, or that the step is
//! done.

use gpu_operator_crd::{health::CauseKind, report::MigDevices};
use serde::{Deserialize, Serialize};

use crate::{
    health::readings::Readings,
    mig::{Divisible, Step},
};

/// A request to the child.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum Question {
    /// Read the GPUs: the PCI addresses of those on the bus, as sysfs writes them.
    Look(Vec<String>),
    /// Read the GPUs and how they are and can be partitioned by MIG, which takes many more calls.
    LookAtDivisions {
        /// The PCI addresses.
        divisions: Vec<String>,
    },
    /// Apply one step of a GPU's MIG layout.
    #[serde(rename_all = "camelCase")]
    Divide {
        /// The GPU's PCI address.
        pci_address: String,
        /// The step.
        step: Step,
    },
}

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
    pub refused: Vec<Refused>,
    /// The XIDs that NVML has reported since the previous reading.
    pub xids: Vec<HeardXid>,
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
    pub mig: Option<Divisible>,
    /// Its MIG devices, if MIG is enabled.
    pub mig_devices: Option<Vec<MigDevices>>,
    /// Its current readings.
    pub readings: Readings,
}

/// A GPU on the bus that NVML does not open.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
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
pub struct HeardXid {
    /// PCI address as sysfs writes it.
    pub pci_address: String,
    /// The number.
    pub xid: u16,
    /// How often it occurred.
    pub count: u64,
}

/// A response of the child.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// What NVML reports.
    Inventory(Inventory),
    /// The step is done.
    Divided,
    /// The step cannot be done while the GPU is in use, with NVML's message.
    InUse(String),
    /// NVML could not be loaded or queried, with the reason.
    Failed(String),
}
