//! The record of a node's update.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::revisions::StageRevisions;
use crate::{open, skip::is_default};

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
    /// The groups that the node had before. The node returns to them if a GPU pod starts before the driver has been
    /// replaced.
    #[serde(default)]
    pub from: StageRevisions,
    /// The time at which the step began.
    pub since: Time,
    /// The time at which the step ends if it is not complete: the update has then failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
}

/// The update of a node within the rollout of its pool.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Moved {
    /// The time at which the rollout began, which identifies it.
    pub rollout: Time,
    /// The hash of the settings that it was updated to.
    #[schemars(length(max = 16))]
    pub revision: String,
    /// Whether it is a canary node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub canary: bool,
    /// The groups that the node had when the rollout began.
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
