//! MIG: the partitioning of GPUs, and the resource names of MIG devices.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Partitioning of GPUs by MIG, and the resource names of MIG devices.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = (
        "!has(self.mode) || has(self.layout) == (self.mode == 'Layout')",
        "mig.mode: Layout requires mig.layout, and other modes exclude it: add or remove mig.layout, or write another mode"
    ),
    validation = (
        "!has(self.layout) || has(self.strategy) && self.strategy != 'None'",
        "mig.layout needs mig.strategy Single or Mixed; otherwise its MIG devices are not advertised"
    ),
    validation = (
        "!has(self.layout) || !has(self.strategy) || self.strategy != 'Single' || size(self.layout) == 1 && !has(self.layout[0].devices) && size(self.layout[0].profiles) == 1",
        "mig.strategy Single supports only one profile, on all GPUs, because all MIG devices have the same resource name: write one entry in mig.layout, with one profile and without devices, or write strategy: Mixed"
    ),
    // -1 stands for all other GPUs. The indices are enumerated because a comparison of each entry with each other one exceeds
    // the API server's limit of costs.
    validation = (
        "!has(self.layout) || [-1, 7, 15, 23, 31, 39, 47, 55, 63].all(a, [0, 1, 2, 3, 4, 5, 6, 7].all(b, self.layout.filter(entry, a + b in (has(entry.devices) ? entry.devices : [-1])).size() <= 1))",
        "a GPU can have only one layout: write its index in one entry of mig.layout, and omit devices in at most one entry"
    )
)]
pub struct Mig {
    /// The resource names under which MIG devices are advertised. Defaults to `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<MigStrategy>,
    /// Whether GPUs are repartitioned. Defaults to `Layout` with a `layout`, else to `Unmanaged`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<MigMode>,
    /// The MIG devices of a node's GPUs. If every entry has `devices`, MIG is disabled on all other GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8))]
    pub layout: Vec<MigLayoutEntry>,
}

/// Whether GPUs are repartitioned.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MigMode {
    /// GPUs are not repartitioned.
    #[default]
    Unmanaged,
    /// MIG is disabled on every MIG-capable GPU.
    Disabled,
    /// GPUs are partitioned as in `layout`.
    Layout,
}

impl Mig {
    /// Returns whether GPUs are repartitioned: the mode that is written, or the default.
    pub fn mode(&self) -> MigMode {
        let default = if self.layout.is_empty() { MigMode::Unmanaged } else { MigMode::Layout };
        self.mode.unwrap_or(default)
    }
}

/// The MIG devices of some GPUs.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "self.profiles.map(entry, (entry.profile.matches('^[1-7]') ? int(entry.profile.substring(0, 1)) : 1) * entry.count).sum() <= 7",
    "the profiles exceed the 7 compute slices of a GPU: lower the counts. The number before the 'g' of a profile is its number of slices"
))]
pub struct MigLayoutEntry {
    /// Indices of GPUs in the order of their PCI addresses, from 0, as in `nvidia-smi`. Defaults to all other MIG-capable
    /// GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 64), inner(range(max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub devices: Vec<u32>,
    /// The MIG devices of each of these GPUs.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["profile".into()]))]
    pub profiles: Vec<MigProfile>,
}

/// MIG devices of one profile.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MigProfile {
    /// The profile as NVIDIA prints it, such as `1g.10gb`: the number of compute slices and the memory, and an attribute:
    /// `+me` (media engines), `+me.all` (all media engines of the GPU), `-me` (none) or `+gfx` (graphics). `.` may replace
    /// `+`, as in resource names. The available profiles depend on the GPU's model.
    #[schemars(length(max = 16))]
    #[x_kube(validation = (
        "self.matches('^[1-7]g[.][0-9]+gb([+.](me|me[.]all|gfx)|-me)?$')",
        "write the name of a MIG profile as nvidia-smi prints it after \"MIG\", such as 1g.10gb, 3g.40gb, 1g.10gb+me, 1g.24gb-me, 1g.24gb+me.all or 1g.24gb+gfx"
    ))]
    pub profile: String,
    /// Their number on each GPU.
    #[schemars(range(min = 1, max = 7))]
    pub count: u32,
}

/// The resource names under which MIG devices are advertised.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MigStrategy {
    /// MIG devices are ignored: each GPU is one `nvidia.com/gpu`.
    #[default]
    None,
    /// Each MIG device is one `nvidia.com/gpu`. All GPUs of a node must have the same layout.
    Single,
    /// MIG devices are advertised by profile, such as `nvidia.com/mig-1g.10gb`.
    Mixed,
}

impl MigStrategy {
    /// Returns the strategy's name in the configuration of NVIDIA's device plugin.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Single => "single",
            Self::Mixed => "mixed",
        }
    }
}
