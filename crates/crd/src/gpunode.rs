//! GpuNode: what is true of one GPU node, one object per node, named after it.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    health::{HealthRules, HealthState},
    reason::Phase,
    report::{HostRuntime, Report},
    validated::Validated,
};

/// What the operator has decided for one node. The probe may create the object empty; the operator writes the spec.
#[derive(CustomResource, Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "gpu.nodestack.dev",
    version = "v1alpha1",
    kind = "GpuNode",
    plural = "gpunodes",
    shortname = "gn",
    category = "gpu",
    status = "GpuNodeStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "What is true of one GPU node: model, driver, how far it is and why. Named after its Node.",
    printcolumn(name = "Model", type_ = "string", json_path = ".status.model"),
    printcolumn(name = "GPUs", type_ = "string", json_path = ".status.gpus.summary"),
    printcolumn(name = "Driver", type_ = "string", json_path = ".status.report.driver.loaded"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Health", type_ = "string", json_path = ".status.health"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeSpec {
    /// The policy that governs the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub policy: Option<String>,
    /// The pool of that policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub pool: Option<String>,
    /// The DaemonSet groups wanted here by the policy as it is now. What the node has is in its labels; the two
    /// differ while a new revision waits for its turn.
    #[serde(default)]
    pub wanted: Groups,
    /// Present from the moment a new revision's turn comes until the node is ready with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Asks the probe to let go of the driver. It confirms with `status.report.nvml.state: Released`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub release_driver: bool,
    /// A folder in which the driver lies on the host, beside those where the probe looks anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub driver_root: Option<String>,
    /// By what the probe judges the node's GPUs, as the node's policy and pool say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthRules>,
}

/// The DaemonSet group of each stage: the value of the node's label of that stage.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Groups {
    /// Absent where the driver is not ours to install.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub driver: Option<String>,
    /// The container toolkit's group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub toolkit: Option<String>,
    /// The MPS control daemon's group. Absent where GPUs are not shared by MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub mps: Option<String>,
    /// The device plugin's group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub device_plugin: Option<String>,
}

/// A move of one node from one revision to another.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// What is being done.
    pub step: RolloutStep,
    /// What the node had before: what it goes back to if a GPU pod arrives before its driver has moved.
    #[serde(default)]
    pub from: Groups,
    /// When the node's turn came.
    pub since: Time,
}

/// The steps of a node's move, in order.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RolloutStep {
    /// The device plugin is taken off and the probe lets go, so that nothing of ours uses the driver.
    Release,
    /// The new revision's pods are on the node.
    Install,
}

/// What is true of the node. `report` is the probe's, everything else the operator's.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeStatus {
    /// The probe's facts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    /// Canonical name of the accelerator model, such as `nvidia-tesla-p100`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub model: Option<String>,
    /// The highest CUDA version that the node's driver serves, such as `13.0`: that of the wanted driver's branch, by the
    /// catalogue, else what the driver itself says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub cuda: Option<String>,
    /// How many GPUs there should be and how many there are.
    #[serde(default)]
    pub gpus: GpuCounts,
    /// How its GPUs are: the worst state among them, and `Unknown` while the probe is silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthState>,
    /// The precompiled driver image that was wanted here and that there is not, so that the driver is compiled on the
    /// node for as long as it would be wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 700))]
    pub missing_image: Option<String>,
    /// How far the node is. On its way to ready it passes through phases, and one that takes moments is passed over; where many
    /// nodes are on their way at once, one that takes minutes as well.
    #[serde(default)]
    pub phase: Phase,
    /// Why it is there, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<crate::Reason>,
    /// Why it is there, in a sentence that names what to look at or what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// What the node waits on, where it waits on something in particular: pods, by namespace and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), inner(length(max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub waits_on: Vec<String>,
    /// Since when phase and reason are what they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// When waiting in this phase counts as a failure. Absent where nothing is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// What came of its last validation, where its policy asks for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validated>,
    /// What of the node's GPU stack is somebody else's, by stage (`driver`, `toolkit`, `device-plugin`, or `dra-driver` in place
    /// of the last): their DaemonSet, by namespace and name. It stays here when they are gone, for as long as the policy leaves foreign stacks alone.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 4), inner(length(max = 317)))]
    pub foreign: std::collections::BTreeMap<String, String>,
    /// NVIDIA's runtime of the host's own by which containers get GPUs here, so that no toolkit of ours is installed. It stays
    /// here, whatever the probe finds, for as long as the policy leaves it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_runtime: Option<HostRuntime>,
    /// The labels outside our own prefix that this node carries because its policy names them or asks for them.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub published_labels: std::collections::BTreeMap<String, String>,
}

impl GpuNodeStatus {
    /// Whether the node is ready for GPU pods.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// `since` as a plain point in time.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        self.since.as_ref().map(|time| time.0)
    }
}

/// How many GPUs there should be and how many there are. `expected` and `allocatable` count what the scheduler gives out:
/// a GPU that four pods share is four, one with seven MIG devices seven. All other counts are of GPUs.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GpuCounts {
    /// What the node should offer: its GPUs, times what sharing or MIG makes of each. How many GPUs it should have is said
    /// by the annotation `gpu.nodestack.dev/gpu-count` of the Node, else the pool's promise, else the most ever seen on this
    /// Node, else the cloud's label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<u32>,
    /// What the scheduler can give out: the Node's allocatable `nvidia.com/gpu`, and where GPUs are offered by other names,
    /// such as `nvidia.com/gpu.shared` or `nvidia.com/mig-1g.10gb`, those as well.
    #[serde(default)]
    pub allocatable: u32,
    /// What should be offered by name, where that is not `nvidia.com/gpu` alone.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub resources: std::collections::BTreeMap<String, u32>,
    /// The most GPUs ever seen on the bus of the Node with uid `seenOn`. The Node's annotation
    /// `gpu.nodestack.dev/gpu-count` lowers it to what is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_seen: Option<u32>,
    /// The PCI addresses at which those were: what is not there any more is a missing GPU's last address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 32)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub seen_at: Vec<String>,
    /// The uid of the Node that `mostSeen` speaks of. A Node of the same name but another uid begins anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub seen_on: Option<String>,
    /// GPUs that must not be used, by the probe's judgement.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unhealthy: u32,
    /// GPUs that work, and that something is wrong with.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub degraded: u32,
    /// GPUs of which nothing is known at present.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unknown: u32,
    /// `allocatable/expected`, as printed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub summary: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
