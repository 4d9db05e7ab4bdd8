//! The plan: everything that is to be written.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::ClusterGpuPolicyStatus;
use k8s_openapi::{
    api::{core::v1::Pod, node::v1::RuntimeClass},
    jiff::Timestamp,
};
use serde::Serialize;

use super::{
    daemon_sets::DaemonSetWrite, events::Transition, gpu_node::GpuNodeWrite, node_health::NodeHealthWrite,
    node_labels::LabelWrite, queries::Questions,
};

/// What is to be written. Empty, but for what it tells of the fleet, where nothing is to be done.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// DaemonSets to apply, by name.
    pub daemon_sets: BTreeMap<String, DaemonSetWrite>,
    /// DaemonSets that no node names and no policy wants.
    pub prune: BTreeSet<String>,
    /// Pods to delete, because they cannot start as they were made and would as they are made now, or because they have
    /// done their work.
    pub renew: BTreeSet<String>,
    /// Pods to make: the tests by which nodes are validated.
    pub pods: BTreeMap<String, Pod>,
    /// RuntimeClasses to apply, by name.
    pub runtime_classes: BTreeMap<String, RuntimeClass>,
    /// RuntimeClasses of ours that no node needs.
    pub prune_classes: BTreeSet<String>,
    /// Label writes, by node.
    pub labels: BTreeMap<String, LabelWrite>,
    /// What is to be written of the Nodes' health.
    pub node_health: BTreeMap<String, NodeHealthWrite>,
    /// GpuNode writes, by node.
    pub gpu_nodes: BTreeMap<String, GpuNodeWrite>,
    /// Policy statuses to write, by policy.
    pub policies: BTreeMap<String, ClusterGpuPolicyStatus>,
    /// Finalizers to put on (true) or take off (false), by policy.
    pub finalizers: BTreeMap<String, bool>,
    /// Transitions that people should hear of.
    pub events: Vec<Transition>,
    /// What has to be known before more can be decided.
    pub questions: Questions,
    /// When to plan again even if nothing changes.
    pub check_again: Option<Timestamp>,
    /// Every policy's status as it should be, written or not: what metrics show.
    #[serde(skip)]
    pub statuses: BTreeMap<String, ClusterGpuPolicyStatus>,
}

impl Plan {
    /// Whether there is nothing to write and nothing to ask.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            daemon_sets,
            prune,
            renew,
            pods,
            runtime_classes,
            prune_classes,
            labels,
            node_health,
            gpu_nodes,
            policies,
            finalizers,
            questions,
            ..
        } = self;
        daemon_sets.is_empty()
            && runtime_classes.is_empty()
            && prune_classes.is_empty()
            && prune.is_empty()
            && renew.is_empty()
            && pods.is_empty()
            && labels.is_empty()
            && node_health.is_empty()
            && gpu_nodes.is_empty()
            && policies.is_empty()
            && finalizers.is_empty()
            && questions.is_empty()
    }

    /// Has the fleet planned for again at a time, if not before.
    pub fn check_by(&mut self, at: Timestamp) {
        self.check_again = Some(self.check_again.map_or(at, |known| known.min(at)));
    }
}
