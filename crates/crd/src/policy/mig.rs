//! MIG: how GPUs are divided, and by which names their parts are offered.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How GPUs are divided by MIG, and how their parts are offered.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = (
        "!has(self.layout) || size(self.layout) == 0 || has(self.strategy) && self.strategy != 'None'",
        "without a strategy nobody is offered what layout makes: write strategy: Single or Mixed beside it"
    ),
    validation = (
        "!has(self.layout) || size(self.layout) < 2 || !has(self.strategy) || self.strategy != 'Single'",
        "strategy Single offers all MIG devices under one name, so that they have to be alike: keep one profile in layout, or write strategy: Mixed"
    ),
    validation = (
        "!has(self.layout) || self.layout.map(entry, (entry.profile.matches('^[1-7]') ? int(entry.profile.substring(0, 1)) : 1) * entry.count).sum() <= 7",
        "a GPU has 7 compute slices, and the number before the 'g' of a profile is how many it takes: lower the counts in layout"
    )
)]
pub struct Mig {
    /// By which names. Absent: `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<MigStrategy>,
    /// What every GPU of a node that has MIG is divided into. Empty: MIG is turned off. Absent: the GPUs are left as they
    /// are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["profile".into()]))]
    pub layout: Option<Vec<MigProfile>>,
}

/// How many MIG devices of a profile a GPU is divided into.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MigProfile {
    /// The profile, such as `1g.10gb`: compute slices and memory. Which there are depends on the GPU's model.
    #[schemars(length(max = 16))]
    #[x_kube(validation = (
        r"self.matches('^[1-7]g\\.[0-9]+gb(\\+me|\\.me|\\+gfx)?$')",
        "write a profile as NVIDIA names it, such as 1g.10gb, 3g.40gb or 1g.10gb+me"
    ))]
    pub profile: String,
    /// How many on every GPU.
    #[schemars(range(min = 1, max = 7))]
    pub count: u32,
}

/// By which names MIG devices are offered.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MigStrategy {
    /// MIG is not looked at: a GPU is one `nvidia.com/gpu`.
    #[default]
    None,
    /// Every MIG device is an `nvidia.com/gpu`; all GPUs of a node are partitioned alike.
    Single,
    /// A MIG device is offered by its profile, such as `nvidia.com/mig-1g.10gb`.
    Mixed,
}

impl MigStrategy {
    /// The word as NVIDIA's plugin takes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Single => "single",
            Self::Mixed => "mixed",
        }
    }
}
