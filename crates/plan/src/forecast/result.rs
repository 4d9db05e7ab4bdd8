//! What a forecast contains.

use gpu_operator_crd::{NodeName, PolicyName, PoolName, gpunode::DisruptionScope, policy::Stage, reason::Reason};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

/// What would happen to the nodes of a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    pub policy: PolicyName,
    /// The number of nodes that it would govern.
    pub nodes: usize,
    /// The updates of nodes, in their order.
    pub updates: Vec<Update>,
    /// Nodes that would not be updated, although they do not have what the policy wants.
    pub waiting: Vec<Waiting>,
    /// Nodes that it governs now and would not govern any more. They lose their GPU stack once no pod uses their GPUs.
    pub leaving: Vec<NodeName>,
    /// Nodes that it selects, and whose label excludes them.
    pub excluded: Vec<NodeName>,
    /// What else would change, which disrupts nothing.
    pub changes: Vec<String>,
    /// What the policy's conditions would report at once.
    pub problems: Vec<Problem>,
}

/// The update of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Update {
    pub node: NodeName,
    pub pool: PoolName,
    /// The wave in which it begins: one more than that of the last update of the policy that has ended before. Absent if it needs no turn,
    /// because the node has nothing yet, or has failed and offers no GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wave: Option<u32>,
    /// The earliest time at which it begins, if it has to wait for one: for a window, for canary nodes, or for the pods of other nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Whether it has begun already.
    pub underway: bool,
    /// What it takes from running pods.
    pub scope: DisruptionScope,
    /// The stages that change, with their images.
    pub stages: Vec<StageChange>,
    /// Whether the operator cordons the node meanwhile.
    pub cordon: bool,
    /// Whether another user has cordoned the node. It stays cordoned.
    pub cordoned: bool,
    /// The pods that use its GPUs, and what becomes of them.
    pub pods: Vec<PodOutcome>,
    /// What keeps the update from going on, as a message. It is given up after `gpuPods.timeout`, and then attempted again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
}

/// The change of a stage on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct StageChange {
    pub stage: Stage,
    /// The image that the node has. Absent if it has none of this operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The image that it gets. The same one if other settings change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// What becomes of a pod that uses the GPUs of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodOutcome {
    /// `namespace/name`.
    pub pod: String,
    /// What becomes of it.
    pub outcome: Outcome,
    /// Why, if it is neither evicted nor just awaited.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What becomes of a pod.
#[derive(strum::IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Outcome {
    Evicted,
    /// Its end is awaited, for `gpuPods.timeout` at most.
    Awaited,
    /// It is not evicted, and blocks the update until it is deleted.
    Kept,
    /// A disruption budget does not allow its eviction at present, which blocks the update.
    Blocked,
}

/// A node that would not be updated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waiting {
    pub node: NodeName,
    pub pool: PoolName,
    pub reason: Reason,
    pub message: String,
    /// The pods that it waits for, `namespace/name`: the first ten.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
}

/// What a condition of the policy would report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The condition's type.
    pub condition: String,
    pub reason: String,
    pub message: String,
}

impl Forecast {
    /// Returns whether the policy would change nothing.
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty() && self.waiting.is_empty() && self.leaving.is_empty() && self.changes.is_empty()
    }
}
