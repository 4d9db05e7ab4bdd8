//! What the operator answers about a policy: bounded in size however large the fleet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The nodes that most need attention are listed, not all of them: the rest is in their GpuNodes.
pub const MAX_ATTENTION: usize = 10;
/// Pools listed; named ones first.
pub const MAX_POOLS: usize = 96;

/// Policies listed that overlap with this one.
pub const MAX_OVERLAPS: usize = 16;

/// What the operator answers about a policy.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterGpuPolicyStatus {
    /// The generation of the spec that the rest describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, `Reconciling`, `Stalled` (as kstatus reads them), `Degraded` and `Accepted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Counts of nodes.
    #[serde(default)]
    pub nodes: NodeCounts,
    /// Counts of GPUs.
    #[serde(default)]
    pub gpus: GpuTotals,
    /// The same counts, as printed.
    #[serde(default)]
    pub summary: Summary,
    /// Counts by pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 96))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub pools: Vec<PoolStatus>,
    /// Policies that select nodes which this one selects as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["policy".into()]))]
    pub overlaps: Vec<Overlap>,
    /// The nodes that most need attention, failures and the longest waiting first; at most ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub attention: Vec<Attention>,
}

/// Counts of nodes. A node is in exactly one of `ready`, `progressing`, `failed` and `excluded`.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// All nodes that the policy governs.
    #[serde(default)]
    pub total: u32,
    /// Nodes whose allocatable is what is expected of them.
    #[serde(default)]
    pub ready: u32,
    /// Nodes on their way.
    #[serde(default)]
    pub progressing: u32,
    /// Nodes that are held up by a failure.
    #[serde(default)]
    pub failed: u32,
    /// Nodes that are NotReady, cordoned, being deleted, or whose GPUs a DRA driver hands out: not counted for
    /// `readiness.minReadyNodes`.
    #[serde(default)]
    pub excluded: u32,
    /// Nodes that the policy selects and that are out by their label `gpu.nodestack.dev/managed`; they are in no other count.
    #[serde(default)]
    pub opted_out: u32,
    /// Nodes, of those that can serve, that have another revision than the wanted one.
    #[serde(default)]
    pub outdated: u32,
}

/// Counts of GPUs.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GpuTotals {
    /// What the policy's nodes should offer.
    #[serde(default)]
    pub expected: u32,
    /// What the scheduler can give out.
    #[serde(default)]
    pub allocatable: u32,
    /// GPUs that must not be used.
    #[serde(default)]
    pub unhealthy: u32,
    /// GPUs that work, and that something is wrong with.
    #[serde(default)]
    pub degraded: u32,
    /// GPUs of nodes whose probe is silent, or that could not be asked lately.
    #[serde(default)]
    pub unknown: u32,
}

/// Counts as text, for `kubectl get`.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// `ready/total` nodes.
    #[schemars(length(max = 32))]
    #[serde(default)]
    pub nodes: String,
    /// `allocatable/expected` GPUs.
    #[schemars(length(max = 32))]
    #[serde(default)]
    pub gpus: String,
}

/// One pool's share.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// The pool's name; an implicit pool's is its model.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Counts of its nodes.
    #[serde(default)]
    pub nodes: NodeCounts,
    /// Counts of its GPUs.
    #[serde(default)]
    pub gpus: GpuTotals,
    /// The driver version that the pool wants, where the driver is ours to install.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub driver_version: Option<String>,
    /// What keeps the pool from going on, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<crate::Reason>,
    /// The same in a sentence that says what to write instead or where to look.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// Nodes that another policy selects as well. Of two policies the older one governs them.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Overlap {
    /// The other policy.
    #[schemars(length(max = 253))]
    pub policy: String,
    /// How many nodes.
    #[serde(default)]
    pub nodes: u32,
    /// The one of the two that is older, and governs them.
    #[schemars(length(max = 253))]
    pub governed_by: String,
}

/// A node that needs attention.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Attention {
    /// The node's name.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Its pool.
    #[schemars(length(max = 63))]
    pub pool: String,
    /// Why, in one word.
    pub reason: crate::Reason,
    /// Why, in a sentence.
    #[schemars(length(max = 512))]
    pub message: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}
