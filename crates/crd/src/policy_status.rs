//! The status of a ClusterGpuPolicy. Its size is bounded regardless of the number of nodes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{
    gpunode::StageRevisions,
    names::{NodeName, PolicyName, PoolName},
    open::{Open, is_default},
};

/// The maximum number of nodes listed in `attention`. The GpuNodes hold the state of all nodes.
pub const MAX_ATTENTION: usize = 10;
/// The maximum number of pools listed. Named pools come first.
pub const MAX_POOLS: usize = 96;

/// The maximum number of keys of taints.
pub const MAX_PUBLISHED_KEYS: usize = 128;

/// The maximum number of overlapping policies listed.
pub const MAX_OVERLAPS: usize = 16;

/// The observed state of a policy.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::structural::keep)]
pub struct ClusterGpuPolicyStatus {
    /// The generation of the spec that the status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The conditions `Ready`, `Reconciling`, `Stalled` (as defined by kstatus), `Degraded` and `Accepted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Counts of the policy's nodes.
    #[serde(default)]
    pub nodes: NodeCounts,
    /// Counts of the policy's GPUs.
    #[serde(default)]
    pub gpus: GpuTotals,
    /// The state of the policy in short, for display.
    #[serde(default)]
    pub summary: Summary,
    /// Status of each pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 96))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub pools: Vec<PoolStatus>,
    /// The progress of the policy's rollouts, and the ledger of their disruptions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rollout: RolloutStatus,
    /// Policies that select some of the same nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["policy".into()]))]
    pub overlaps: Vec<Overlap>,
    /// The keys of taints, except the default key, that nodes may have from this policy: those that it names, and earlier ones that
    /// nodes still have. Only taints with these keys are removed, because a node can forge the annotation that records its taint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub published_keys: Vec<String>,
    /// The nodes that most need attention: failed nodes and those that have waited longest come first. At most ten
    /// nodes are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub attention: Vec<Attention>,
}

/// Counts of nodes. Each node is counted in exactly one of `ready`, `progressing`, `failed` and `excluded`.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// All nodes that the policy governs.
    #[serde(default)]
    pub total: u32,
    /// Nodes whose allocatable GPUs have reached the expected number.
    #[serde(default)]
    pub ready: u32,
    /// Nodes that are in progress.
    #[serde(default)]
    pub progressing: u32,
    /// Nodes that cannot proceed because of a failure.
    #[serde(default)]
    pub failed: u32,
    /// Nodes that are NotReady, cordoned, being deleted or served by a DRA driver. They do not count for
    /// `readiness.minReadyNodes`.
    #[serde(default)]
    pub excluded: u32,
    /// Nodes that the policy selects and whose label `gpu.nodestack.dev/managed` excludes them. They are not part of
    /// any other count.
    #[serde(default)]
    pub opted_out: u32,
    /// Nodes in progress that are in their turn of a rollout. They count as ready for `readiness.minReadyNodes`.
    #[serde(default)]
    pub updating: u32,
    /// Eligible nodes that do not have the wanted revision.
    #[serde(default)]
    pub outdated: u32,
    /// Nodes that the policy no longer governs and that still have its GPU stack, labels or taint. They are not part of
    /// any other count.
    #[serde(default)]
    pub leaving: u32,
}

/// The progress of rollouts. It is absent while there is none.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Nodes that have a revision.
    #[serde(default, skip_serializing_if = "is_default")]
    pub total: u32,
    /// Nodes that have the wanted revision.
    #[serde(default, skip_serializing_if = "is_default")]
    pub done: u32,
    /// Nodes that are being updated.
    #[serde(default, skip_serializing_if = "is_default")]
    pub in_progress: u32,
    /// Nodes whose update is pending.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waiting: u32,
    /// Nodes whose update has failed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub failed: u32,
    /// The nodes that may be disrupted. A node is listed before its update begins, and until its update has ended. The list is only
    /// written if the policy has not changed since it was read, so that two operators at once do not exceed the limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["node".into()]))]
    pub slots: Vec<Slot>,
    /// What is remembered of the rollouts of pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 96))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["pool".into()]))]
    pub pools: Vec<PoolRollout>,
}

/// The right to disrupt a node once.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Slot {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: NodeName,
    /// Name of the pool for which it counts.
    #[schemars(length(max = 63))]
    pub pool: PoolName,
    /// The UID of the node's GpuNode.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// The number that `spec.updatesBegun` of the GpuNode gets with this disruption.
    pub update: u32,
    /// The time since which the node has the slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// What is remembered of the rollout of a pool.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PoolRollout {
    /// Name of the pool.
    #[schemars(length(max = 63))]
    pub pool: PoolName,
    /// What its nodes should get. As soon as none of them should get anything that was begun, what is remembered does not apply any more. A
    /// pool without nodes forgets nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["revision".into()]))]
    pub targets: Vec<RolloutTarget>,
    /// The value of the policy's annotation `gpu.nodestack.dev/retry` at that time.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub retry: String,
    /// The time at which the rollout began. Absent if none is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Why the nodes return to what they had before, if they do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub rolled_back: String,
    /// Nodes whose update failed and that have not become ready since. They are not updated again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub failed: Vec<NodeName>,
    /// Reboots during updates or within ten minutes after them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["bootID".into()]))]
    pub reboots: Vec<Reboot>,
}

/// Revisions that some nodes of a pool should get.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RolloutTarget {
    /// A hash of these revisions.
    #[schemars(length(max = 16))]
    pub revision: String,
    /// Whether an update to them has begun.
    #[serde(default, skip_serializing_if = "is_default")]
    pub begun: bool,
    /// The proven revisions that such nodes had before the rollout. Absent if they had none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub proven: StageRevisions,
}

/// A reboot of a node.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Reboot {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: NodeName,
    /// The new boot.
    #[serde(rename = "bootID")]
    #[schemars(length(max = 128))]
    pub boot_id: String,
}

/// Counts of GPUs.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GpuTotals {
    /// The number of units that the policy's nodes should offer.
    #[serde(default)]
    pub expected: u32,
    /// The number of units that are allocatable.
    #[serde(default)]
    pub allocatable: u32,
    /// GPUs that must not be used.
    #[serde(default)]
    pub unhealthy: u32,
    /// GPUs that work but have a problem.
    #[serde(default)]
    pub degraded: u32,
    /// GPUs whose health is unknown because their probe does not report or could not query them recently.
    #[serde(default)]
    pub unknown: u32,
}

/// What `kubectl get` shows.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The most urgent of `Rejected`, `Stalled`, `NotReady`, `RollingOut`, `Degraded` and `Ready`, in this order; or `Unknown` once the operator was
    /// uninstalled.
    #[schemars(length(max = 32))]
    #[serde(default)]
    pub status: String,
    /// The reason of the condition behind `status`.
    #[schemars(length(max = 64))]
    #[serde(default)]
    pub reason: String,
    /// The message of the condition behind `status`.
    #[schemars(length(max = 1024))]
    #[serde(default)]
    pub message: String,
    /// Nodes, as `ready/total`.
    #[schemars(length(max = 32))]
    #[serde(default)]
    pub nodes: String,
    /// Eligible nodes, as `at the wanted revision/all`.
    #[schemars(length(max = 32))]
    #[serde(default)]
    pub updated: String,
    /// GPUs, as `allocatable/expected`.
    #[schemars(length(max = 32))]
    #[serde(default)]
    pub gpus: String,
}

/// Status of one pool.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Name of the pool. An implicit pool is named after its model.
    #[schemars(length(max = 63))]
    pub name: PoolName,
    /// Counts of the pool's nodes.
    #[serde(default)]
    pub nodes: NodeCounts,
    /// Counts of the pool's GPUs.
    #[serde(default)]
    pub gpus: GpuTotals,
    /// The driver version of the pool. Absent if the operator does not install the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub driver_version: Option<String>,
    /// The reason why the pool cannot proceed. Absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Open<crate::reason::Reason>>,
    /// A human-readable explanation of the reason, with the action to take.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
}

impl PoolStatus {
    /// Returns the reason, if the pool has one that this version knows.
    pub fn reason(&self) -> Option<crate::reason::Reason> {
        self.reason.as_ref()?.known()
    }
}

/// Nodes that another policy selects as well. The policy with the higher priority, or else the older one, governs them.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Overlap {
    /// Name of the other policy.
    #[schemars(length(max = 253))]
    pub policy: PolicyName,
    /// The number of nodes that both policies select.
    #[serde(default)]
    pub nodes: u32,
    /// Name of the policy that governs these nodes.
    #[schemars(length(max = 253))]
    pub governed_by: PolicyName,
}

/// A node that needs attention.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Attention {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: NodeName,
    /// Name of the node's pool.
    #[schemars(length(max = 63))]
    pub pool: PoolName,
    /// A one-word reason for the node's state.
    pub reason: Open<crate::reason::Reason>,
    /// A human-readable explanation of the node's state.
    #[schemars(length(max = 512))]
    pub message: String,
    /// The time since which the node is in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

impl Attention {
    /// Returns the reason, if this version knows it.
    pub fn reason(&self) -> Option<crate::reason::Reason> {
        self.reason.known()
    }
}
