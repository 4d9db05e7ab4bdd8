//! GPU models that the built-in catalogue lacks.

use std::fmt;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumIter, EnumString, IntoStaticStr};

use crate::open::{Open, is_default};

/// A GPU model that the built-in catalogue lacks. It applies to all policies.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "self.architecture in ['Kepler', 'Maxwell', 'Pascal', 'Volta', 'Turing', 'Ampere', 'Ada', 'Hopper', 'Blackwell'] || (has(self.modules) && has(self.driver) && has(self.driver.firstBranch))",
    "this version does not know the architecture: write Kepler, Maxwell, Pascal, Volta, Turing, Ampere, Ada, Hopper or Blackwell, or add driver.firstBranch and modules"
))]
pub struct Model {
    /// Name of the model, as it is set in node labels and used in `match.models` of pools. It may contain lower-case
    /// letters, digits and `-`.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = (
        "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "a model's name may contain only lower-case letters, digits and '-', and must start and end with a letter or digit, such as nvidia-rtx-6000"
    ))]
    pub name: String,
    /// The PCI device IDs of the model: four hexadecimal digits each, without NVIDIA's vendor ID `10de`.
    #[schemars(with = "Vec<PciId>", length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[serde(rename = "pciIDs")]
    pub pci_ids: Vec<String>,
    /// The GPU's architecture, such as `Blackwell`, which determines the supported drivers and kernel modules. For an
    /// architecture that this version does not know, `driver.firstBranch` and `modules` are required.
    pub architecture: Open<Architecture>,
    /// Memory of one GPU, in MiB.
    #[serde(rename = "memoryMiB", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub memory_mib: Option<u32>,
    /// The driver branches that support the model. Defaults to those of its architecture.
    #[serde(default, skip_serializing_if = "is_default")]
    pub driver: ModelDriver,
    /// The kernel modules that support the model. Defaults to those of its architecture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modules: Option<ModuleSupport>,
}

/// The driver branches that support a model.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "!has(self.firstBranch) || !has(self.lastBranch) || self.firstBranch <= self.lastBranch",
    "lastBranch is lower than firstBranch: write a lastBranch that is equal or higher"
))]
pub struct ModelDriver {
    /// The first branch that supports the model, such as 570.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 999))]
    pub first_branch: Option<u16>,
    /// The last branch that supports the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 999))]
    pub last_branch: Option<u16>,
}

/// The schema of a PCI device ID.
struct PciId;

impl JsonSchema for PciId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PciId".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "maxLength": 32, "x-kubernetes-validations": [{
            "rule": "self.matches('^[0-9a-f]{4}$')",
            "message": "write the PCI device ID as four lower-case hexadecimal digits, without the vendor, such as \"2330\"",
        }]})
    }
}

/// NVIDIA's GPU architectures, oldest first.
#[derive(
    Serialize,
    Deserialize,
    IntoStaticStr,
    EnumIter,
    EnumString,
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
)]
#[allow(missing_docs, reason = "NVIDIA's own names")]
pub enum Architecture {
    Kepler,
    Maxwell,
    Pascal,
    Volta,
    Turing,
    Ampere,
    Ada,
    Hopper,
    Blackwell,
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The types of NVIDIA's kernel modules that support a model.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleSupport {
    /// Only the proprietary modules: Volta and earlier.
    ProprietaryOnly,
    /// Both types.
    Either,
    /// Only the open modules: Grace Hopper, Blackwell and later.
    OpenOnly,
}
