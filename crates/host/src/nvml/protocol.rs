//! The protocol between the probe and its NVML child. A request is one line: the PCI addresses of the GPUs on the bus, or one
//! step of a GPU's MIG layout. The response is one line: the inventory of the GPUs with their MIG state, or that the step is
//! done. The child that calls CUDA gets no request, and responds with one line.

use gpu_operator_crd::{
    health::CauseKind,
    report::{CudaError, MigDevices},
};
use serde::{Deserialize, Serialize};

use crate::nvml::readings::Readings;

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum Request {
    /// Read the GPUs: the PCI addresses of those on the bus, as sysfs writes them.
    Gpus(Vec<String>),
    /// Read the GPUs and how they are and can be partitioned by MIG, which takes many more calls.
    GpusAndMig { with_mig: Vec<String> },
    #[serde(rename_all = "camelCase")]
    ApplyMigStep { pci_address: String, step: MigStep },
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Response {
    Inventory(Inventory),
    StepDone,
    /// The step cannot be done while the GPU is in use, with NVML's message.
    InUse(String),
    /// NVML could not be loaded or queried, with the reason.
    Failed(String),
}

/// The result of one call of `cuInit`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum CudaInit {
    Succeeded,
    Failed(CudaError),
    /// It could not be called or did not return, with the reason. This proves nothing about other programs.
    Unknown(String),
}

/// One reading of every GPU that NVML knows.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Inventory {
    /// The version of the driver that answers.
    pub driver_version: String,
    /// The highest CUDA version that it supports, such as `13.1`, if reported.
    pub cuda_version: Option<String>,
    pub count: u32,
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
    pub mig_capable: Option<bool>,
    /// Its cluster and clique in the NVLink fabric that it has joined.
    pub fabric_clique: Option<String>,
    /// Its MIG state; absent if it does not support MIG, or if that was not requested.
    pub mig: Option<MigGpu>,
    /// Its MIG devices, if MIG is enabled.
    pub mig_devices: Option<Vec<MigDevices>>,
    /// The number in `/dev/nvidia<number>`.
    pub minor: Option<u32>,
    /// The ids of its MIG devices, if MIG is enabled.
    pub mig_ids: Vec<MigId>,
    pub readings: Readings,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase", default)]
pub struct MigId {
    /// `MIG-…`.
    pub uuid: String,
    pub gpu_instance: Option<u32>,
    /// The name of its profile; empty if it cannot be read.
    pub profile: String,
}

/// A GPU on the bus that NVML does not open.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RefusedGpu {
    pub pci_address: String,
    /// What that means for its health.
    pub kind: CauseKind,
    pub message: String,
}

/// XIDs of one number and GPU.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NvmlXid {
    pub pci_address: String,
    pub xid: u16,
    pub count: u64,
}

/// The position of an instance, in memory slices.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    pub start: u32,
    pub size: u32,
}

impl Placement {
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.start.saturating_add(other.size) && other.start < self.start.saturating_add(self.size)
    }
}

/// A process that uses a GPU or one of its instances.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuClient {
    /// The process id on the host.
    pub pid: u32,
    pub name: String,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub id: u32,
    pub profile: String,
    pub placement: Placement,
    pub clients: Vec<GpuClient>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct MigProfile {
    pub name: String,
    /// Its possible positions on an empty GPU.
    pub placements: Vec<Placement>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct MigState {
    pub enabled: bool,
    /// Whether MIG will be enabled after the next reset. If that differs, nothing else can be done before it.
    pub pending: bool,
    pub instances: Vec<Instance>,
    /// The processes that use the GPU as a whole.
    pub clients: Vec<GpuClient>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct MigGpu {
    pub state: MigState,
    pub profiles: Vec<MigProfile>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum MigStep {
    /// Destroys the instance with this id and its compute instances.
    Destroy(u32),
    /// Enables or disables MIG. Some GPUs need a reset for this to take effect.
    SetMode(bool),
    /// Creates an instance, and one compute instance that takes all of it.
    Create { profile: String, placement: Placement },
}
