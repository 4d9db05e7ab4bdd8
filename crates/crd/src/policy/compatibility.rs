//! What other programs write of GPU nodes, written in their place.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What other programs write of GPU nodes, written in their place for those who go by it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Compatibility {
    /// Whose labels the nodes carry beside those of this operator. Absent: `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<CompatibleLabels>,
}

impl Compatibility {
    /// Whether nodes are to carry the labels of NVIDIA's GPU feature discovery.
    #[must_use]
    pub fn wants_gfd(&self) -> bool {
        self.labels == Some(CompatibleLabels::Gfd)
    }
}

/// Whose labels nodes carry beside those of this operator: nobody's, or, with `Gfd`, those of NVIDIA's GPU feature discovery,
/// such as `nvidia.com/gpu.product`. A key that somebody else has written stays theirs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompatibleLabels {
    /// Nobody's.
    #[default]
    None,
    /// Those of NVIDIA's GPU feature discovery, such as `nvidia.com/gpu.product`, and `nvidia.com/gpu.present`.
    Gfd,
}
