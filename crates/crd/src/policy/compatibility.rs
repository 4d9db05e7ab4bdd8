//! Compatibility with programs that expect the output of other GPU components.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings for compatibility with programs that expect the output of other GPU components.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Compatibility {
    /// A further set of labels to publish on nodes, beside the operator's own. Defaults to `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<CompatibleLabels>,
}

impl Compatibility {
    /// Returns whether nodes carry the labels of NVIDIA's GPU feature discovery.
    pub fn wants_gfd(&self) -> bool {
        self.labels == Some(CompatibleLabels::Gfd)
    }
}

/// A set of labels that is published on nodes, beside the operator's own. A key that another writer has set is never
/// overwritten.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompatibleLabels {
    /// No further labels.
    #[default]
    None,
    /// The labels of NVIDIA's GPU feature discovery, such as `nvidia.com/gpu.product`, and `nvidia.com/gpu.present`.
    #[serde(rename = "GFD")]
    Gfd,
}
