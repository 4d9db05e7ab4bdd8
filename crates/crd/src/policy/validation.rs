//! Validation of nodes by a short test on their GPUs.

use kube::{KubeSchema, core::Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::operand::Image;

/// A short test that a node must pass before it counts as ready: a pod that requests one of its GPUs. No GPU is
/// reserved for the test. If other pods use all GPUs, the test is skipped after two minutes, as those pods prove that
/// the GPUs work.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "!has(self.image) && !has(self.timeout) || has(self.mode) && self.mode != 'Never'",
    "image and timeout have no effect with mode: Never; add mode: OnInstall or OnUpgrade, or remove them"
))]
pub struct Validation {
    /// When to validate a node. Defaults to `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ValidationMode>,
    /// The image of the test. It is run with its own entrypoint and passes if it exits 0; otherwise the end of its
    /// output is shown in the node's message. Defaults to NVIDIA's vectorAdd for the CUDA version of the node's driver,
    /// which passes if it prints "Test PASSED".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// The time limit of the test once it has a GPU, including the time to pull its image. Defaults to 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self.matches('^([0-9]{1,6}(h|m|s)){1,3}$') && self.matches('[1-9]')",
        "write a duration above zero in hours, minutes and seconds, such as 5m or 90s"
    ))]
    pub timeout: Option<Duration>,
}

/// When to validate a node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValidationMode {
    /// Nodes are not validated.
    #[default]
    Never,
    /// Nodes are validated when all their GPUs are allocatable for the first time.
    OnInstall,
    /// Nodes are validated as with `OnInstall`, and again after each update, before the next node is updated.
    OnUpgrade,
}
