//! What is said of the validation of nodes: a short test on their GPUs, by which they prove themselves.

use kube::{KubeSchema, core::Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Image;

/// A short test on the GPUs of a node before it counts as ready: a pod that asks for one of them. It keeps no GPU free
/// for itself: where other pods have them all, it is given up after two minutes, and those pods are the proof.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "!has(self.image) && !has(self.timeout) || has(self.mode) && self.mode != 'Never'",
    "nothing is validated, so that image and timeout count for nothing: write mode: OnInstall or OnUpgrade beside them, or remove them"
))]
pub struct Validation {
    /// When a node is tested. Absent: `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ValidationMode>,
    /// The test's image. It is started as it is, passes by ending with exit code 0, and what it printed last becomes the
    /// node's message otherwise. Absent: NVIDIA's vectorAdd, for the CUDA that the node's driver serves, which passes by
    /// saying "Test PASSED".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// How long the test may take once it has a GPU, pulling its image included. Absent: 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self.matches('^([0-9]{1,6}(h|m|s)){1,3}$') && self.matches('[1-9]')",
        "write a duration in hours, minutes and seconds that is longer than nothing, such as 5m or 90s"
    ))]
    pub timeout: Option<Duration>,
}

/// When a node is tested.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValidationMode {
    /// Not at all.
    #[default]
    Never,
    /// When it has all its GPUs for the first time.
    OnInstall,
    /// Then, and after each move to a new revision, before the next node's turn comes.
    OnUpgrade,
}
