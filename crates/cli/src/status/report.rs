//! What `status` reports, from the facts. Pure.

use gpu_operator_crd::{
    ClusterGpuPolicy, ConditionType, GpuNode, NodeName, Phase, PoolName,
    policy_status::{Attention, ClusterGpuPolicyStatus, GpuTotals, NodeCounts, Overlap, PoolStatus},
    reason::Reason,
};
use gpu_operator_plan::output::headline;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::ResourceExt;
use serde::Serialize;

use crate::status::facts::{Facts, Operator};

#[derive(Serialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether there are policies, and all of them are ready.
    pub is_ready: bool,
    pub operator: Operator,
    /// The policies; those that need attention come first.
    pub policies: Vec<PolicyReport>,
    /// The names of policies that cannot be parsed.
    pub unreadable: Vec<String>,
    /// The nodes that are not ready, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<NodeReport>>,
    /// What to explain next, as arguments of `explain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// What is not known, as messages.
    pub notes: Vec<String>,
}

#[derive(Serialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct PolicyReport {
    pub name: String,
    /// `Rejected`, `Stalled`, `NotReady`, `RollingOut`, `Degraded`, `Ready`, or `Unknown` if the operator has not observed the policy.
    pub status: &'static str,
    /// Whether condition `Ready` is true, for the policy as it was last changed.
    pub is_ready: bool,
    /// The reason of the condition behind `status`.
    pub reason: String,
    pub message: String,
    pub since: Option<Timestamp>,
    pub is_paused: bool,
    pub nodes: NodeCounts,
    pub gpus: GpuTotals,
    /// The pools; those that need attention come first.
    pub pools: Vec<PoolReport>,
    /// Policies that select some of the same nodes.
    pub overlaps: Vec<Overlap>,
}

#[derive(Serialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct PoolReport {
    pub name: PoolName,
    pub state: PoolState,
    /// The version of the driver, if the operator installs it.
    pub driver_version: Option<String>,
    pub nodes: NodeCounts,
    pub gpus: GpuTotals,
    /// The reason why the pool cannot proceed, with the message.
    pub reason: Option<String>,
    pub message: String,
    /// The nodes that are being updated, with the time since which each is.
    pub updating: Vec<(NodeName, Option<Timestamp>)>,
    pub failed_updates: Vec<NodeName>,
    /// Why the pool returns to its previous revision, if it does.
    pub rolled_back: String,
    /// The pool's nodes among the policy's nodes that most need attention.
    pub attention: Vec<Attention>,
}

/// How much a pool needs attention.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolState {
    /// It cannot proceed, or a node has failed.
    Failed,
    /// Nodes are not ready, or are at another revision.
    Progressing,
    Ready,
}

#[derive(Serialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    pub name: String,
    pub phase: Phase,
    pub reason: String,
    pub is_failed: bool,
    pub message: String,
    pub since: Option<Timestamp>,
    /// The time at which its state becomes a failure.
    pub deadline: Option<Timestamp>,
}

/// Whether a wait for the policies may still succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// All policies are ready, and their rollouts are complete.
    Ready,
    Moving,
    /// One cannot become ready until a user changes something.
    Stuck,
}

pub fn report(facts: &Facts) -> Report {
    let mut policies: Vec<_> = facts.policies.iter().map(policy).collect();
    policies.sort_by_cached_key(|policy| (urgency(policy.status), policy.name.clone()));
    let is_ready = facts.unreadable.is_empty() && !policies.is_empty() && policies.iter().all(|policy| policy.is_ready);
    let mut nodes = facts.nodes.as_ref().map(|nodes| nodes.iter().filter_map(node).collect::<Vec<_>>());
    if let Some(nodes) = &mut nodes {
        nodes.sort_by_key(|node| (!node.is_failed, node.since));
    }
    Report {
        is_ready,
        operator: facts.operator.clone(),
        next: policies.iter().find_map(next),
        policies,
        unreadable: facts.unreadable.clone(),
        nodes,
        notes: facts.notes.clone(),
    }
}

/// Returns whether a wait for the policies may still succeed. An unreadable policy may be of a later version, and is awaited.
pub fn progress(facts: &Facts) -> Progress {
    let of_policy = |policy: &ClusterGpuPolicy| {
        let Some(status) = policy.status.as_ref().filter(|_| is_observed(policy)) else { return Progress::Moving };
        let has = |kind: ConditionType, value: &str| condition(status, kind).is_some_and(|found| found.status == value);
        if has(ConditionType::Accepted, "False") || has(ConditionType::Stalled, "True") {
            Progress::Stuck
        } else if has(ConditionType::Ready, "True") && !has(ConditionType::Reconciling, "True") {
            Progress::Ready
        } else {
            Progress::Moving
        }
    };
    let unreadable = facts.unreadable.iter().map(|_| Progress::Moving);
    facts.policies.iter().map(of_policy).chain(unreadable).max().unwrap_or(Progress::Moving)
}

fn condition(status: &ClusterGpuPolicyStatus, kind: ConditionType) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.type_ == kind.as_str())
}

/// Returns whether the status describes the policy as it was last changed.
fn is_observed(policy: &ClusterGpuPolicy) -> bool {
    let observed = policy.status.as_ref().and_then(|status| status.observed_generation);
    observed.is_some() && observed == policy.metadata.generation
}

/// Returns the rank of a status: those that need attention first are the lowest.
fn urgency(status: &str) -> usize {
    let ranks = ["Rejected", "Stalled", "NotReady", "Unknown", "RollingOut", "Degraded", "Ready"];
    ranks.iter().position(|rank| *rank == status).unwrap_or_default()
}

fn policy(policy: &ClusterGpuPolicy) -> PolicyReport {
    let status = policy.status.clone().unwrap_or_default();
    let headline = headline::of(&status.conditions);
    let is_observed = is_observed(policy) && headline.condition.is_some();
    let mut pools: Vec<_> = status.pools.iter().map(|of| pool(of, &status)).collect();
    pools.sort_by(|one, other| (one.state, &one.name).cmp(&(other.state, &other.name)));
    let is_ready = condition(&status, ConditionType::Ready).is_some_and(|ready| ready.status == "True");
    PolicyReport {
        name: policy.name_any(),
        status: if is_observed { headline.status } else { "Unknown" },
        is_ready: is_observed && is_ready,
        reason: headline.condition.map(|condition| condition.reason.clone()).unwrap_or_default(),
        message: headline.condition.map(|condition| condition.message.clone()).unwrap_or_default(),
        since: headline.condition.map(|condition| condition.last_transition_time.0),
        is_paused: policy.spec.rollout.paused == Some(true),
        nodes: status.nodes,
        gpus: status.gpus,
        pools,
        overlaps: status.overlaps,
    }
}

fn pool(pool: &PoolStatus, status: &ClusterGpuPolicyStatus) -> PoolReport {
    let PoolStatus { name, nodes, gpus, driver_version, reason, message } = pool.clone();
    let rollout = status.rollout.pools.iter().find(|rollout| rollout.pool == name);
    let slots = status.rollout.slots.iter().filter(|slot| slot.pool == name);
    let updating = slots.map(|slot| (slot.node.clone(), slot.since.as_ref().map(|since| since.0)));
    let failed_updates = rollout.map(|rollout| rollout.failed.clone()).unwrap_or_default();
    let is_stuck = nodes.failed > 0 || !failed_updates.is_empty() || pool.reason().is_some_and(Reason::is_failure);
    let is_moving = nodes.ready + nodes.excluded < nodes.total || nodes.outdated > 0 || nodes.leaving > 0;
    PoolReport {
        state: match (is_stuck, is_moving) {
            (true, _) => PoolState::Failed,
            (false, true) => PoolState::Progressing,
            (false, false) => PoolState::Ready,
        },
        updating: updating.collect(),
        failed_updates,
        rolled_back: rollout.map(|rollout| rollout.rolled_back.clone()).unwrap_or_default(),
        attention: status.attention.iter().filter(|attention| attention.pool == name).cloned().collect(),
        reason: reason.map(|reason| reason.to_string()),
        name,
        driver_version,
        nodes,
        gpus,
        message,
    }
}

fn node(node: &GpuNode) -> Option<NodeReport> {
    let status = node.status.clone().unwrap_or_default();
    (!status.is_ready()).then(|| NodeReport {
        name: node.name_any(),
        is_failed: status.reason().is_some_and(Reason::is_failure),
        since: status.since(),
        phase: status.phase,
        reason: status.reason.map(|reason| reason.to_string()).unwrap_or_default(),
        message: status.message,
        deadline: status.deadline.map(|deadline| deadline.0),
    })
}

/// Returns what to explain next of a policy that is not as it should be: its node that most needs attention, or else its reason.
fn next(policy: &PolicyReport) -> Option<String> {
    if matches!(policy.status, "Ready" | "Unknown" | "RollingOut") {
        return None;
    }
    let first = policy.pools.iter().find_map(|pool| pool.attention.first());
    Some(match first {
        Some(attention) => format!("node {}", attention.node),
        None => format!("reason {}", policy.reason),
    })
}
