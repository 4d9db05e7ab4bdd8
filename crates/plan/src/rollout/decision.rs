//! The rollout's decisions for a node, a pool and a policy.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{
    NodeName, PoolName,
    gpunode::{Moved, Rollout, StageRevisions},
    reason::Reason,
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{member::Member, verdict::Verdict},
    note::Note,
    rollout::{eviction::Eviction, ledger::Content, preflight::PreflightPod},
};

/// The maximum number of nodes of a pool whose GPU pods are queried in one pass to find a node without any.
const ASK_AT_ONCE: usize = 8;

/// The decision for a node.
#[expect(clippy::struct_excessive_bools, reason = "independent decisions")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The groups that its labels should name.
    pub labels: StageRevisions,
    /// The update that it is in.
    pub rollout: Option<Rollout>,
    /// The number of its updates so far, including this one.
    pub turns: u32,
    /// Its last update in a rollout of its pool.
    pub moved: Option<Moved>,
    /// The time before which no update of it begins.
    pub not_before: Option<Timestamp>,
    /// Whether its update ends as failed.
    pub failed: bool,
    /// Whether this operator keeps it cordoned.
    pub cordon: bool,
    /// Whether the probe should release the driver.
    pub release: bool,
    /// Whether the probe should list the programs that hold the GPUs.
    pub report_holders: bool,
    /// Whether DaemonSets whose pods use the driver should give way; see [`gpu_operator_crd::keys::CLIENTS`].
    pub pauses_clients: bool,
    /// The pods to evict.
    pub evictions: Vec<Eviction>,
    /// The note beside the verdict: why the node's update is pending.
    pub note: Option<Note>,
}

#[derive(Clone, Debug, Default)]
pub struct PoolDecision {
    pub nodes: BTreeMap<NodeName, Decision>,
    /// Why the pool's rollout is halted or rolled back, if it is.
    pub halted: Option<Note>,
    /// The number of its nodes whose update has failed.
    pub failed: usize,
    /// Nodes whose GPU pods have to be queried for further decisions.
    pub questions: BTreeSet<NodeName>,
    /// Whether a node is waiting for a change that no watch reports.
    pub ask_again: bool,
    /// When a decision changes without an event.
    pub check_again: Option<Timestamp>,
    /// Pods to recreate: device plugins that have to restore a MIG layout, and toolkits that restart the container runtime.
    pub delete_pods: BTreeSet<String>,
    /// The pods that pull images before nodes move to a revision, by name.
    pub preflight_pods: BTreeMap<String, PreflightPod>,
}

impl PoolDecision {
    /// Asks for the GPU pods of a node, unless too many nodes have been asked for.
    pub fn ask(&mut self, member: &Member<'_>) {
        if self.questions.len() < ASK_AT_ONCE {
            self.questions.insert(member.node.name.clone());
        }
    }

    /// Records that a decision changes at this time.
    pub fn check(&mut self, at: Timestamp) {
        self.check_again = self.check_again.into_iter().chain([at]).min();
    }
}

#[derive(Clone, Debug, Default)]
pub struct PolicyDecision<'f> {
    pub pools: BTreeMap<&'f PoolName, PoolDecision>,
    /// Its ledger, if that changes.
    pub ledger: Option<Content>,
    /// When its ledger changes without an event.
    pub check_again: Option<Timestamp>,
    /// Why updates are pending, beside other updates that make progress, as a message.
    pub waits_for: Option<String>,
    /// Slots of nodes that are no members of their pools any more, with their numbers.
    pub strays: BTreeMap<NodeName, u32>,
}

/// Returns why the update of a node fails, if it does.
pub fn failure(member: &Member<'_>, verdict: &Verdict) -> Option<String> {
    let overdue = member.status().is_some_and(|status| status.reason() == Some(Reason::ProgressDeadlineExceeded));
    (verdict.reason.is_failure() && !missed_a_gpu_before(verdict) || overdue)
        .then(|| format!("node {}: {}: {}", member.node.name, verdict.reason, verdict.message))
}

/// Returns whether the reason is a missing or unhealthy GPU, which is not caused by the update.
pub fn missed_a_gpu_before(verdict: &Verdict) -> bool {
    matches!(verdict.reason, Reason::GpuMissing | Reason::GpuUnhealthy)
}
