//! What passes between the probe and its NVML child: a line with the PCI addresses of the GPUs on the bus, and a line
//! with what NVML says of them; or a line with a step towards a GPU's division by MIG, and a line that says it is done.

use gpu_operator_crd::{health::CauseKind, report::MigDevices};
use serde::{Deserialize, Serialize};

use crate::{
    health::readings::Readings,
    mig::{Divisible, Step},
};

/// The question.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum Question {
    /// How the GPUs are: the PCI addresses of those on the bus, as sysfs writes them.
    Look(Vec<String>),
    /// The same, with how they are divided by MIG and may be: that takes many more calls.
    LookAtDivisions {
        /// The PCI addresses.
        divisions: Vec<String>,
    },
    /// To do something towards a GPU's division.
    #[serde(rename_all = "camelCase")]
    Divide {
        /// Which GPU.
        pci_address: String,
        /// What.
        step: Step,
    },
}

/// One look at every GPU that NVML knows.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Inventory {
    /// The version of the driver that answers.
    pub driver_version: String,
    /// The highest CUDA version it serves, such as `13.1`, where it says so.
    pub cuda_version: Option<String>,
    /// How many GPUs NVML counts.
    pub count: u32,
    /// The GPUs that could be opened.
    pub gpus: Vec<NvmlGpu>,
    /// The GPUs of the bus that could not.
    pub refused: Vec<Refused>,
    /// The XIDs that NVML has told since the look before.
    pub xids: Vec<HeardXid>,
}

/// What NVML says of one GPU. An answer it has none for is absent.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct NvmlGpu {
    /// PCI address as sysfs writes it.
    pub pci_address: String,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// NVIDIA's name of the product, such as `NVIDIA H100 80GB HBM3`.
    pub name: Option<String>,
    /// Frame buffer, in MiB.
    pub memory_mib: Option<u64>,
    /// CUDA compute capability, such as `9.0`.
    pub compute_capability: Option<String>,
    /// Whether it can be divided by MIG.
    pub mig_capable: Option<bool>,
    /// Its cluster and clique in an NVLink fabric that it has joined.
    pub fabric_clique: Option<String>,
    /// How it is divided by MIG; absent where it cannot be, and where that was not asked.
    pub mig: Option<Divisible>,
    /// Its MIG devices, where it is in MIG mode.
    pub mig_devices: Option<Vec<MigDevices>>,
    /// Its state at this moment.
    pub readings: Readings,
}

/// A GPU of the bus that NVML does not open.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// PCI address as sysfs writes it.
    pub pci_address: String,
    /// What that means for its health.
    pub kind: CauseKind,
    /// What NVML said.
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
    /// How often it came.
    pub count: u64,
}

/// The answer.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// NVML answers.
    Inventory(Inventory),
    /// The step is done.
    Divided,
    /// The step cannot be done while somebody uses the GPU, and what NVML says.
    InUse(String),
    /// NVML could not be loaded or asked, and why.
    Failed(String),
}
