//! What is decided for a node, and for a pool.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{
    gpunode::{Groups, Rollout},
    reason::Reason,
};

use crate::{
    assess::{member::Member, verdict::Verdict},
    note::Note,
};

/// How many nodes of a pool are asked about their GPU pods in one pass, looking for one that is free.
pub const ASK_AT_ONCE: usize = 8;

/// What is to be done with a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The groups that its labels should name.
    pub labels: Groups,
    /// The move that it is in.
    pub rollout: Option<Rollout>,
    /// Whether the probe should let go of the driver.
    pub release: bool,
    /// What is to be said beside the verdict: why its revision has not moved.
    pub note: Option<Note>,
}

/// The decisions for one pool.
#[derive(Clone, Debug, Default)]
pub struct PoolDecision {
    /// By node.
    pub nodes: BTreeMap<String, Decision>,
    /// Why the pool's rollout stands still, if it does.
    pub halted: Option<String>,
    /// Nodes whose GPU pods have to be known before more can be decided.
    pub questions: BTreeSet<String>,
    /// Whether a node waits for what no watch tells of.
    pub ask_again: bool,
    /// Pods to make anew: a plugin's, so that GPUs are divided as they should be, and a toolkit's that restarts the runtime.
    pub renew: BTreeSet<String>,
}

/// Why a node in the middle of its move holds up its pool, if it does: it has failed, or is not there to go on.
#[must_use]
pub fn halts(member: &Member<'_>, verdict: &Verdict) -> Option<String> {
    let name = &member.node.name;
    if verdict.reason.is_away() {
        let reason = verdict.reason;
        return Some(format!(
            "node {name} is in the middle of its move and {reason}: bring it back or delete the Node"
        ));
    }
    let overdue = member.status().is_some_and(|status| status.reason == Some(Reason::ProgressDeadlineExceeded));
    (verdict.reason.is_failure() && !missed_a_gpu_before(verdict) || overdue)
        .then(|| format!("node {name}: {}: {}", verdict.reason, verdict.message))
}

/// A GPU that is missing or sick is not the move's doing.
#[must_use]
pub fn missed_a_gpu_before(verdict: &Verdict) -> bool {
    matches!(verdict.reason, Reason::GpuMissing | Reason::GpuUnhealthy | Reason::ExpectedUnknown)
}
