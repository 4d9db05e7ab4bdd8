//! The result of a node's validation.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{open, skip::is_default};

/// The result of a node's last validation.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Validated {
    /// The result.
    #[serde(deserialize_with = "open::or_default")]
    pub result: ValidationResult,
    /// The validated state of the node: a hash of its DaemonSet groups.
    #[schemars(length(max = 32))]
    pub of: String,
    /// The time of the result.
    pub since: Time,
    /// Details of the result. After a failure, the end of the test's output.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// The number of consecutive failures. The delay before the next attempt doubles with each, up to one hour.
    #[serde(default, skip_serializing_if = "is_default")]
    pub failures: u32,
    /// The image that failed. A different image is tried immediately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub image: Option<String>,
    /// The boot ID of the node when the test failed. After a reboot the test is repeated immediately.
    #[serde(rename = "bootID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
}

/// The result of a validation.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValidationResult {
    /// The test passed.
    Passed,
    /// The test failed, or could not be run.
    Failed,
    /// No test was run: all GPUs were in use, or the node was ready before validation was enabled.
    #[default]
    Skipped,
}
