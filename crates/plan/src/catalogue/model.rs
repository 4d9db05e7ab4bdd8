//! The facts of a GPU model, names of models, and versions of drivers.

use std::{fmt, str::FromStr};

use gpu_operator_common::version::Version;
use gpu_operator_crd::{
    Open,
    policy::{Architecture, ModuleSupport},
};
use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// A legal label value: the value of GKE's accelerator label, if it has one, such as `nvidia-tesla-p100`.
    pub name: String,
    /// Other clouds' label values for this model.
    pub aliases: Vec<String>,
    pub architecture: Open<Architecture>,
    pub devices: Vec<PciDevice>,
    /// Nominal memory of one GPU in MiB, if known and the same for all of [`Self::devices`].
    pub memory_mib: Option<u32>,
    pub driver: BranchRange,
    /// The flavours of NVIDIA's kernel modules that support it.
    pub modules: ModuleSupport,
    /// Whether NVIDIA publishes its drivers among those for desktop and workstation cards.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    pub device_id: u16,
    /// The subsystem that distinguishes this product from others with the same device id; `None` matches any.
    pub subsystem: Option<Subsystem>,
    /// Nominal memory of one GPU in MiB.
    pub memory_mib: Option<u32>,
}

/// A PCI subsystem (`subsystem_vendor` and `subsystem_device` in sysfs). Parsed from text such as `10de:157e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subsystem {
    pub vendor: u16,
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

/// A driver version of which images are known, and what they were built for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub version: String,
    /// The first number is the branch.
    pub numbers: Version,
    /// The operating systems that NVIDIA built its image for, as the tags name them, such as `ubuntu22.04`. A Red Hat
    /// system is named by its major version, or by its minor one too, such as `rhel8.8`.
    pub os: Vec<String>,
    /// The source of this information.
    pub source: String,
    /// Whether it is recommended: a node can get it without a policy that names it.
    pub is_default: bool,
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

const LONGEST: usize = 63;

/// Returns the name of a PCI device that the catalogue lacks: `nvidia-` and NVML's product name or, if that is unknown, the PCI id
/// (`nvidia-10de-2684`). It can be a label value and part of an object's name: lower-case letters, digits and `-`.
pub fn unknown_model_name(device_id: u16, product_name: Option<&str>) -> String {
    let mut words = product_name.map(sanitised).unwrap_or_default();
    if let Some(rest) = words.strip_prefix("nvidia-") {
        words = rest.to_owned();
    }
    // NVML may return only the vendor's name, which does not distinguish models.
    if words.is_empty() || words == "nvidia" {
        words = format!("10de-{device_id:04x}");
    }
    let name = format!("nvidia-{words}");
    // The name is ASCII here, so truncation cannot split a character.
    name.get(..LONGEST).unwrap_or(&name).trim_end_matches('-').to_owned()
}

/// Returns the text in lower case, with `-` for each sequence of characters other than ASCII letters and digits.
fn sanitised(text: &str) -> String {
    let words: Vec<_> = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    words.join("-").to_ascii_lowercase()
}

pub(super) fn is_desktop(name: &str) -> bool {
    let families = ["quadro-", "geforce-", "titan-", "rtx-", "nvs-"];
    name.strip_prefix("nvidia-").is_some_and(|rest| families.iter().any(|family| rest.starts_with(family)))
}

/// Returns whether this is a legal non-empty label value, or a legal name part of a label key.
pub fn is_label_value(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.len() <= LONGEST && text.starts_with(outer) && text.ends_with(outer) && text.chars().all(inner)
}

/// 580 of `580.173.02`, and of `580` itself.
pub fn branch_of(version: &str) -> Option<u16> {
    parsed(version)?.major().try_into().ok()
}

/// Returns a version of one to three numbers, the first of which has three digits.
pub(super) fn parsed(version: &str) -> Option<Version> {
    let version: Version = version.parse().ok()?;
    (version.parts() <= 3 && (100..1000).contains(&version.major())).then_some(version)
}
