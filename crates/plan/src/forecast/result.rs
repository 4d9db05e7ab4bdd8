use gpu_operator_crd::{NodeName, PolicyName, PoolName, gpunode::DisruptionScope, policy::Stage, reason::Reason};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    pub policy: PolicyName,
    /// The number of nodes that the policy would govern.
    pub nodes: usize,
    /// In their order.
    pub updates: Vec<Update>,
    /// Nodes that would not be updated, although they differ from the policy.
    pub waiting: Vec<Waiting>,
    /// Nodes that it would not govern any more: they lose their GPU stack once no pod uses their GPUs.
    pub leaving: Vec<NodeName>,
    /// Nodes that it selects, and whose label excludes them.
    pub excluded: Vec<NodeName>,
    /// What else would change, without disruption.
    pub changes: Vec<String>,
    /// What the conditions would report at once.
    pub problems: Vec<Problem>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Update {
    pub node: NodeName,
    pub pool: PoolName,
    /// The wave in which it begins: one more than that of the policy's last ended update. `None` if it needs no slot, because the node has
    /// nothing yet, or has failed and offers no GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wave: Option<u32>,
    /// The earliest begin, if it waits for a window, for canary nodes, or for the pods of other nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    pub underway: bool,
    /// What it takes from running pods.
    pub scope: DisruptionScope,
    pub stages: Vec<StageChange>,
    /// Whether the operator cordons the node meanwhile.
    pub cordon: bool,
    /// Whether another user has cordoned the node. It stays cordoned.
    pub cordoned: bool,
    pub pods: Vec<PodOutcome>,
    /// The obstacle to the update. It is given up after `gpuPods.timeout`, and then attempted again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct StageChange {
    pub stage: Stage,
    /// `None` if the node has no image of this operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The same image if other settings change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodOutcome {
    /// `namespace/name`.
    pub pod: String,
    pub outcome: Outcome,
    /// Why, if it is neither evicted nor just awaited.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[derive(strum::IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Outcome {
    Evicted,
    /// For `gpuPods.timeout` at most.
    Awaited,
    /// It blocks the update until it is deleted.
    Kept,
    /// A disruption budget does not allow its eviction, which blocks the update.
    Blocked,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waiting {
    pub node: NodeName,
    pub pool: PoolName,
    pub reason: Reason,
    pub message: String,
    /// The first ten, `namespace/name`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub condition: String,
    pub reason: String,
    pub message: String,
}

impl Forecast {
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty() && self.waiting.is_empty() && self.leaving.is_empty() && self.changes.is_empty()
    }
}
