//! MIG: the partitioning of GPUs, and the resource names of MIG devices.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Partitioning of GPUs by MIG, and the resource names of MIG devices.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = (
        "!has(self.layout) || size(self.layout) == 0 || has(self.strategy) && self.strategy != 'None'",
        "mig.layout needs mig.strategy Single or Mixed; otherwise its MIG devices are not advertised"
    ),
    validation = (
        "!has(self.layout) || size(self.layout) < 2 || !has(self.strategy) || self.strategy != 'Single'",
        "mig.strategy Single supports only one profile, because all MIG devices have the same resource name: keep one profile in mig.layout, or write strategy: Mixed"
    ),
    validation = (
        "!has(self.layout) || self.layout.map(entry, (entry.profile.matches('^[1-7]') ? int(entry.profile.substring(0, 1)) : 1) * entry.count).sum() <= 7",
        "mig.layout exceeds the 7 compute slices of a GPU: lower the counts. The number before the 'g' of a profile is its number of slices"
    )
)]
pub struct Mig {
    /// The resource names under which MIG devices are advertised. Defaults to `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<MigStrategy>,
    /// The MIG devices to create on every MIG-capable GPU of a node. An empty list disables MIG. By default GPUs are
    /// not repartitioned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["profile".into()]))]
    pub layout: Option<Vec<MigProfile>>,
}

/// The number of MIG devices of one profile.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MigProfile {
    /// The profile as NVIDIA prints it, such as `1g.10gb`: the number of compute slices and the memory, followed by an
    /// attribute: `+me` (media engines), `+me.all` (all media engines of the GPU), `-me` (no media engines) or `+gfx`
    /// (graphics). `.` may replace `+`, as in resource names. The available profiles depend on the GPU's model.
    #[schemars(length(max = 16))]
    #[x_kube(validation = (
        "self.matches('^[1-7]g[.][0-9]+gb([+.](me|me[.]all|gfx)|-me)?$')",
        "write the name of a MIG profile as nvidia-smi prints it after \"MIG\", such as 1g.10gb, 3g.40gb, 1g.10gb+me, 1g.24gb-me, 1g.24gb+me.all or 1g.24gb+gfx"
    ))]
    pub profile: String,
    /// The number of devices of this profile on each GPU.
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
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Single => "single",
            Self::Mixed => "mixed",
        }
    }
}
