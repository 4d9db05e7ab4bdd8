//! XIDs, the errors that the driver reports, as they are found by NVML or in the kernel log.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

/// XIDs of one number that occurred since the previous look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidCount {
    /// The number.
    pub xid: u16,
    /// How often it occurred.
    pub count: u64,
    /// Where it was found.
    pub source: XidSource,
    /// The driver's message; may be empty.
    pub message: String,
}

/// Where an XID was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidSource {
    /// Reported by NVML when it occurred.
    Nvml,
    /// Logged by the kernel since the previous look; the time of the last one.
    KernelLog(Timestamp),
    /// Logged by the kernel before this process started. The previous report may already include it.
    EarlierKernelLog(Timestamp),
}

/// XIDs by the PCI address of their GPU.
pub type XidsByGpu = BTreeMap<String, Vec<XidCount>>;

/// Events since the previous look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewEvents {
    /// New XIDs. If the driver was loaded in the meantime, only those after that.
    pub xids: XidsByGpu,
    /// When the driver was loaded, if the kernel log shows it.
    pub driver_loaded: Option<Timestamp>,
}
