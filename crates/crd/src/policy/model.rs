//! Models of GPUs that the operator does not know by itself.

use std::fmt;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_default;

/// A model of GPU that the catalogue lacks. It counts for every policy.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// Its name, as nodes carry it and as pools match it: lower-case letters, digits and `-`.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = (
        "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "a model's name has lower-case letters, digits and '-' only and begins and ends with a letter or digit, such as nvidia-rtx-6000"
    ))]
    pub name: String,
    /// The PCI device ids that it appears as, without NVIDIA's `10de`: four hexadecimal digits each.
    #[schemars(with = "Vec<PciId>", length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub pci_ids: Vec<String>,
    /// Its architecture, which says which drivers and kernel modules run it.
    pub architecture: Architecture,
    /// Memory of one GPU, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub memory_mib: Option<u32>,
    /// The driver branches that support it. Absent: its architecture's.
    #[serde(default, skip_serializing_if = "is_default")]
    pub driver: ModelDriver,
    /// The kernel modules that run it. Absent: its architecture's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modules: Option<ModuleSupport>,
}

/// The driver branches that support a model.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "!has(self.firstBranch) || !has(self.lastBranch) || self.firstBranch <= self.lastBranch",
    "no branch lies between these two: write a lastBranch that is not before firstBranch"
))]
pub struct ModelDriver {
    /// The first branch, such as 570.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 999))]
    pub first_branch: Option<u16>,
    /// The last branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 999))]
    pub last_branch: Option<u16>,
}

/// A PCI device id.
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
            "message": "write the four lower-case hexadecimal digits of the device without the vendor, such as \"2330\"",
        }]})
    }
}

/// NVIDIA's GPU architectures, oldest first.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// Which flavours of NVIDIA's kernel modules run a model.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleSupport {
    /// Only the proprietary modules: everything before Turing.
    ProprietaryOnly,
    /// Both.
    Either,
    /// Only the open modules: Grace Hopper, Blackwell and later.
    OpenOnly,
}
