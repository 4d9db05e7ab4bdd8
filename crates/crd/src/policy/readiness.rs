//! When a policy counts as ready, how schedulers learn that a node is, and the validation of nodes by a short test on their GPUs.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{KubeSchema, core::Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{keys, open::is_default, policy::operand::Image, schema::StartupTaintKey};

/// The criteria by which a policy counts as ready, and how schedulers learn that a node is.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Readiness {
    /// The maximum duration of each phase of a node, after which the node counts as failed. Defaults to 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self.matches('^([0-9]{1,6}(h|m|s)){1,3}$') && self.matches('[1-9]')",
        "write a duration above zero in hours, minutes and seconds, such as 30m or 1h30m"
    ))]
    pub progress_deadline: Option<Duration>,
    /// The number of nodes that must be ready, as a number or as a percentage of the eligible nodes, which are those
    /// that are not NotReady, cordoned or being deleted. A node that is being updated counts as ready. Defaults to 100%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^([0-9]|[1-9][0-9]|100)%$", "minimum" = 0, "maximum" = 999_999))]
    pub min_ready_nodes: Option<IntOrString>,
    /// Validation of nodes by a short test on a GPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub validation: Validation,
    /// Whether each node has the condition `gpu.nodestack.dev/GpuReady`, which repeats the condition `Ready` of its GpuNode and costs
    /// writes of the Node. Defaults to false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub node_condition: bool,
    /// The taint with which new nodes register, and which the operator removes once the node is ready. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_taint: Option<StartupTaint>,
}

/// The taint with which new nodes register. The operator removes every taint with its key once the node is ready, and never adds one.
/// The operator's pods tolerate it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StartupTaint {
    /// The key. Defaults to `gpu.nodestack.dev/startup`. Keys of kubernetes.io and k8s.io are reserved, except those that begin with
    /// `startup-taint.cluster-autoscaler.kubernetes.io/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<StartupTaintKey>")]
    pub key: Option<String>,
}

impl StartupTaint {
    /// Returns the key.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(keys::STARTUP_TAINT)
    }
}

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
