//! The MIG state of a GPU, and the steps that change it.

use serde::{Deserialize, Serialize};

/// The position of an instance, in memory slices.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    /// The first slice.
    pub start: u32,
    /// The number of slices.
    pub size: u32,
}

impl Placement {
    /// Returns whether two positions share a slice.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.start.saturating_add(other.size) && other.start < self.start.saturating_add(self.size)
    }
}

/// A process that uses a GPU or one of its instances.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuClient {
    /// The process id on the host.
    pub pid: u32,
    /// The process' name, if known.
    pub name: String,
}

/// An existing GPU instance.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// NVML's id of it.
    pub id: u32,
    /// The name of its profile.
    pub profile: String,
    /// Its position.
    pub placement: Placement,
    /// The processes that use it.
    pub clients: Vec<GpuClient>,
}

/// A profile that the GPU supports.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct MigProfile {
    pub name: String,
    /// Its possible positions on an empty GPU.
    pub placements: Vec<Placement>,
}

/// The MIG state of a GPU as reported by NVML.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct MigState {
    pub enabled: bool,
    /// Whether MIG will be enabled after the next reset. If that differs, nothing else can be done before it.
    pub pending: bool,
    /// The existing instances.
    pub instances: Vec<Instance>,
    /// The processes that use the GPU as a whole.
    pub clients: Vec<GpuClient>,
}

/// A GPU that supports MIG.
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
    Create {
        profile: String,
        /// The position.
        placement: Placement,
    },
}
