//! The protocol between the probe and its NVML child. A request is one line: the PCI addresses of the GPUs on the bus,
//! or one step of a GPU's MIG layout. The response is one line: what NVML reports of the GPUs, or that the step is
//! done.

use serde::{Deserialize, Serialize};

use super::{inventory::Inventory, mig::MigStep};

/// A request to the child.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum Request {
    /// Read the GPUs: the PCI addresses of those on the bus, as sysfs writes them.
    Gpus(Vec<String>),
    /// Read the GPUs and how they are and can be partitioned by MIG, which takes many more calls.
    GpusAndMig {
        /// The PCI addresses.
        with_mig: Vec<String>,
    },
    /// Apply one step of a GPU's MIG layout.
    #[serde(rename_all = "camelCase")]
    ApplyMigStep {
        /// The GPU's PCI address.
        pci_address: String,
        step: MigStep,
    },
}

/// A response of the child.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Response {
    /// What NVML reports.
    Inventory(Inventory),
    StepDone,
    /// The step cannot be done while the GPU is in use, with NVML's message.
    InUse(String),
    /// NVML could not be loaded or queried, with the reason.
    Failed(String),
}
