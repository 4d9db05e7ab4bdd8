//! What a GpuNode records: the DaemonSet revisions of its node, its update, and the result of its validation.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    names::Revision,
    open::{self, is_default},
    stage::Stage,
};

/// The DaemonSet revision of each stage. The name of a revision is the value of the node's label for that stage.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StageRevisions {
    /// The revision of the driver. Absent if the operator does not install the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub driver: Option<Revision>,
    /// The revision of the container toolkit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub toolkit: Option<Revision>,
    /// The revision of the MPS control daemon. Absent if GPUs are not shared by MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub mps: Option<Revision>,
    /// The revision of the device plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub device_plugin: Option<Revision>,
}

impl StageRevisions {
    /// Returns the revision of a stage.
    pub fn get(&self, stage: Stage) -> Option<&Revision> {
        match stage {
            Stage::Driver => self.driver.as_ref(),
            Stage::Toolkit => self.toolkit.as_ref(),
            Stage::Mps => self.mps.as_ref(),
            Stage::DevicePlugin => self.device_plugin.as_ref(),
        }
    }

    /// Returns the revision of a stage, to be changed.
    pub fn get_mut(&mut self, stage: Stage) -> &mut Option<Revision> {
        match stage {
            Stage::Driver => &mut self.driver,
            Stage::Toolkit => &mut self.toolkit,
            Stage::Mps => &mut self.mps,
            Stage::DevicePlugin => &mut self.device_plugin,
        }
    }
}

/// The update of one node from one revision to another.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// The current step.
    #[serde(deserialize_with = "open::or_default")]
    pub step: RolloutStep,
    /// What the update disturbs on the node.
    #[serde(default, deserialize_with = "open::or_default")]
    pub scope: DisruptionScope,
    /// The revisions that the node had before. The node returns to them if a GPU pod starts before the driver has been
    /// replaced.
    #[serde(default)]
    pub from: StageRevisions,
    /// The time at which the step began.
    pub since: Time,
    /// The time at which the step ends if it is not complete: the update has then failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// Whether the eviction of the pods that use the GPUs has begun. From then on the node is not given back because its window closes or
    /// its rollout is paused.
    #[serde(default, skip_serializing_if = "is_default")]
    pub evicting: bool,
}

/// The update of a node within the rollout of its pool.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LastUpdate {
    /// The time at which the rollout began, which identifies it.
    pub rollout: Time,
    /// A hash of the revisions that it was updated to.
    #[schemars(length(max = 16))]
    pub revision: String,
    /// The boot of the node before its driver was released.
    #[serde(default, rename = "bootID", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub boot_id: String,
    /// Whether it is a canary node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub canary: bool,
    /// The revisions that the node had when the rollout began.
    #[serde(default)]
    pub from: StageRevisions,
    /// The number of its GPUs with a known problem when its update began.
    #[serde(default)]
    pub unhealthy: u32,
    /// The time at which its update ended. Absent before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

/// The steps of a node's update, in order.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RolloutStep {
    /// The pods and programs that use the GPUs are listed, and awaited if the policy sets that. Nothing is changed on the node but its
    /// cordon.
    #[serde(alias = "Check")]
    Await,
    /// The device plugin is removed and the probe releases the driver, so that no component of the operator uses it.
    Release,
    /// The pods of the new revision are being installed on the node.
    #[default]
    #[serde(alias = "Install")]
    Replace,
}

/// What a disruption takes from running pods.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DisruptionScope {
    /// Nothing: pods keep their GPUs.
    Nothing,
    /// All GPUs of the node.
    #[default]
    GpuPods,
}

/// The result of a node's last validation.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Validated {
    /// The result.
    #[serde(deserialize_with = "open::or_default")]
    pub result: ValidationResult,
    /// The validated state of the node: a hash of its DaemonSet revisions.
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
