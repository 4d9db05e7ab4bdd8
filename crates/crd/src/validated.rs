//! What came of the validation of a node.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What came of the last validation of a node.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Validated {
    /// How it ended.
    pub result: ValidationResult,
    /// What it was a validation of: a hash of the DaemonSet groups that the node had.
    #[schemars(length(max = 32))]
    pub of: String,
    /// Since when this is so.
    pub since: Time,
    /// What there is to say of it: after a failure the test's own last words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// How often it has failed in a row. Each time it takes twice as long until it is tried again, an hour at most.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// The image that failed: another one is tried at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub image: Option<String>,
    /// The boot in which it failed: in another one it is tried at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
}

/// How a validation ended.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValidationResult {
    /// The test has passed.
    Passed,
    /// The test has failed, or could not be run.
    Failed,
    /// There was none: all GPUs were taken, or the node was ready before validation was asked for.
    Skipped,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
