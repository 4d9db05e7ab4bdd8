//! The facts of a GPU model.

use std::{fmt, str::FromStr};

use gpu_operator_common::version::Version;
use gpu_operator_crd::{
    Open,
    policy::{Architecture, ModuleSupport},
};
use serde::Deserialize;

/// A GPU model, with one canonical name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// The canonical name, a legal label value: the value of GKE's accelerator label if it has one, such as
    /// `nvidia-tesla-p100`.
    pub name: String,
    /// Other clouds' label values for this model.
    pub aliases: Vec<String>,
    pub architecture: Open<Architecture>,
    /// The PCI devices that it appears as.
    pub devices: Vec<PciDevice>,
    /// Nominal memory of one GPU in MiB, if known and the same for all of [`Self::devices`].
    pub memory_mib: Option<u32>,
    /// The driver branches that support it.
    pub driver: BranchRange,
    /// The flavours of NVIDIA's kernel modules that support it.
    pub modules: ModuleSupport,
    /// Whether NVIDIA publishes its drivers among those for desktop and workstation cards, and not among those for data
    /// centres.
    pub desktop: bool,
    /// The facts that are unverified; `None` if all are verified.
    pub believed: Option<String>,
}

impl Accelerator {
    /// Returns name and architecture, as in messages: `nvidia-tesla-k80 (Kepler)`.
    pub fn title(&self) -> String {
        format!("{} ({})", self.name, self.architecture)
    }

    pub fn is_pci(&self, device_id: u16) -> bool {
        self.devices.iter().any(|device| device.device_id == device_id)
    }

    /// Returns the nominal memory in MiB of the variant with this PCI device id, or `None` if no source documents it.
    pub fn memory_of_pci(&self, device_id: u16) -> Option<u32> {
        self.devices.iter().find(|d| d.device_id == device_id)?.memory_mib
    }
}

/// An NVIDIA PCI device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// The device id, without the vendor's `10de`.
    pub device_id: u16,
    /// The subsystem that distinguishes this product from others with the same device id; `None` matches any.
    pub subsystem: Option<Subsystem>,
    /// Nominal memory of one GPU in MiB.
    pub memory_mib: Option<u32>,
}

/// A PCI subsystem (`subsystem_vendor` and `subsystem_device` in sysfs). Parsed from text such as `10de:157e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subsystem {
    /// The id of the board's vendor.
    pub vendor: u16,
    /// The vendor's id of the board.
    pub device: u16,
}

impl FromStr for Subsystem {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (vendor, device) = text.split_once(':').unwrap_or((text, ""));
        Ok(Self { vendor: u16::from_str_radix(vendor, 16)?, device: u16::from_str_radix(device, 16)? })
    }
}

/// The driver branches that support a model, both ends included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BranchRange {
    /// The first branch; `None` if it is older than any relevant branch.
    pub first: Option<u16>,
    /// The first version within the first branch, such as `570.133.20`; `None` if it is the branch's first version.
    pub first_version: Option<String>,
    /// The last branch; `None` if the model is still supported.
    pub last: Option<u16>,
}

impl fmt::Display for BranchRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last) {
            (None, None) => f.write_str("by every branch"),
            (Some(first), None) => write!(f, "from branch {first}"),
            (None, Some(last)) => write!(f, "up to branch {last}"),
            (Some(first), Some(last)) => write!(f, "from branch {first} up to branch {last}"),
        }
    }
}

/// A driver version that is recommended, and what its images were built for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The full version, such as `580.173.02`.
    pub version: String,
    /// The numbers of the version, of which the first is the branch.
    pub numbers: Version,
    /// The operating systems that NVIDIA built its image for, as the tags name them, such as `ubuntu22.04`. A Red Hat
    /// system is named by its major version, or by its minor one too, such as `rhel8.8`.
    pub os: Vec<String>,
    /// Where that is known from.
    pub source: String,
}

/// Defaults for the models of an architecture.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ArchitectureEntry {
    pub(super) name: Architecture,
    pub(super) first: Option<Limit>,
    pub(super) last: Option<Limit>,
    pub(super) modules: ModuleSupport,
}

/// The first or the last branch that supports an architecture or a model.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Limit {
    pub(super) branch: u16,
    pub(super) version: Option<String>,
    pub(super) believed: Option<String>,
}
