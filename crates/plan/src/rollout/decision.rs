//! The rollout's decisions for a node and for a pool.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{
    NodeName,
    gpunode::{Rollout, StageRevisions},
    reason::Reason,
};

use crate::{
    assess::{member::Member, verdict::Verdict},
    note::Note,
};

/// The maximum number of nodes of a pool whose GPU pods are queried in one pass to find a node without any.
pub const ASK_AT_ONCE: usize = 8;

/// The decision for a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The groups that its labels should name.
    pub labels: StageRevisions,
    /// The update that it is in.
    pub rollout: Option<Rollout>,
    /// Whether the probe should release the driver.
    pub release: bool,
    /// Whether the probe should list the programs that hold the GPUs.
    pub report_holders: bool,
    /// Whether DaemonSets whose pods use the driver should give way; see [`gpu_operator_crd::keys::CLIENTS`].
    pub pauses_clients: bool,
    /// The note beside the verdict: why the node's update is pending.
    pub note: Option<Note>,
}

/// The decisions for one pool.
#[derive(Clone, Debug, Default)]
pub struct PoolDecision {
    /// The decisions by node.
    pub nodes: BTreeMap<NodeName, Decision>,
    /// Why the pool's rollout is halted, if it is.
    pub halted: Option<String>,
    /// Nodes whose GPU pods have to be queried for further decisions.
    pub questions: BTreeSet<NodeName>,
    /// Whether a node is waiting for a change that no watch reports.
    pub ask_again: bool,
    /// Pods to recreate: device plugins that have to restore a MIG layout, and toolkits that restart the container runtime.
    pub delete_pods: BTreeSet<String>,
}

/// Returns why a node that is being updated halts its pool, if it does: it failed, or is NotReady or being deleted.
#[must_use]
pub fn halts(member: &Member<'_>, verdict: &Verdict) -> Option<String> {
    let name = &member.node.name;
    if verdict.reason.is_away() {
        let reason = verdict.reason;
        return Some(format!(
            "node {name} is being updated and has reason {reason}; bring it back, or delete the Node"
        ));
    }
    let overdue = member.status().is_some_and(|status| status.reason() == Some(Reason::ProgressDeadlineExceeded));
    (verdict.reason.is_failure() && !missed_a_gpu_before(verdict) || overdue)
        .then(|| format!("node {name}: {}: {}", verdict.reason, verdict.message))
}

/// Returns whether the reason is a missing or unhealthy GPU, which is not caused by the update.
#[must_use]
pub fn missed_a_gpu_before(verdict: &Verdict) -> bool {
    matches!(verdict.reason, Reason::GpuMissing | Reason::GpuUnhealthy)
}
