//! The rollout's decisions for a node, a pool and a policy.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{
    NodeName, PoolName,
    gpunode::{LastUpdate, Rollout, StageRevisions},
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::member::Member,
    note::Note,
    rollout::{eviction::Eviction, ledger::Content, preflight::PreflightPod},
};

/// The maximum number of nodes of a pool that are queried in one pass to find one without GPU pods.
const ASK_AT_ONCE: usize = 8;

#[expect(clippy::struct_excessive_bools, reason = "independent decisions")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The revisions that its labels should name.
    pub labels: StageRevisions,
    pub rollout: Option<Rollout>,
    /// Including this one.
    pub updates_begun: u32,
    pub last_update: Option<LastUpdate>,
    pub not_before: Option<Timestamp>,
    pub failed: bool,
    pub cordon: bool,
    pub release: bool,
    /// Whether the probe should list the programs that hold the GPUs.
    pub report_holders: bool,
    /// Whether DaemonSets with the label [`gpu_operator_crd::keys::CLIENTS`] should give way.
    pub pauses_clients: bool,
    pub evictions: Vec<Eviction>,
    /// Why the node's update is pending.
    pub note: Option<Note>,
}

#[derive(Clone, Debug, Default)]
pub struct PoolDecision {
    pub nodes: BTreeMap<NodeName, Decision>,
    /// Why the rollout is halted or rolled back.
    pub halted: Option<Note>,
    pub failed: usize,
    /// Nodes whose GPU pods have to be queried.
    pub questions: BTreeSet<NodeName>,
    /// Whether a node is waiting for a change that no watch reports.
    pub ask_again: bool,
    /// Device plugins that have to restore a MIG layout, and toolkits that restart the container runtime.
    pub delete_pods: BTreeSet<String>,
    /// By name.
    pub preflight_pods: BTreeMap<String, PreflightPod>,
}

impl PoolDecision {
    /// Ignored once too many nodes have been asked for.
    pub fn ask(&mut self, member: &Member<'_>) {
        if self.questions.len() < ASK_AT_ONCE {
            self.questions.insert(member.node.name.clone());
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct PolicyDecision<'f> {
    pub pools: BTreeMap<&'f PoolName, PoolDecision>,
    /// If it changes.
    pub ledger: Option<Content>,
    /// Why updates are pending, beside other updates that make progress.
    pub waits_for: Option<String>,
    /// Slots of nodes that have left their pools.
    pub strays: BTreeMap<NodeName, u32>,
}
