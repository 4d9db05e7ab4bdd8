//! The plan: everything that must be written.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{ClusterGpuPolicyStatus, NodeName, PolicyName, PoolName};
use k8s_openapi::{
    api::{core::v1::Pod, node::v1::RuntimeClass},
    jiff::Timestamp,
};
use serde::Serialize;

use super::{
    daemon_sets::DaemonSetWrite, events::Transition, gpu_node::GpuNodeWrite, node_health::NodeHealthWrite,
    node_labels::LabelWrite, queries::Questions,
};

/// Everything that must be written, or the part of it that one writer returns. If nothing must be done, it contains only the
/// statuses for metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// DaemonSets to apply, by name.
    pub daemon_sets: BTreeMap<String, DaemonSetWrite>,
    /// DaemonSets to delete, which no node and no policy needs.
    pub prune: BTreeSet<String>,
    /// Pods to delete, because they cannot start but would start if recreated, or because they are done.
    pub delete_pods: BTreeSet<String>,
    /// Pods to create: the tests that validate nodes.
    pub pods: BTreeMap<String, Pod>,
    /// RuntimeClasses to apply, by name.
    pub runtime_classes: BTreeMap<String, RuntimeClass>,
    /// This operator's RuntimeClasses to delete, which no node needs.
    pub prune_classes: BTreeSet<String>,
    /// GpuNodes to delete, which have no Node, with their uids.
    pub prune_gpu_nodes: BTreeMap<NodeName, String>,
    /// Label writes, by node.
    pub labels: BTreeMap<NodeName, LabelWrite>,
    /// Writes of GPU health, by node.
    pub node_health: BTreeMap<NodeName, NodeHealthWrite>,
    /// GpuNode writes, by node.
    pub gpu_nodes: BTreeMap<NodeName, GpuNodeWrite>,
    /// Policy statuses to write, by policy.
    pub policies: BTreeMap<PolicyName, ClusterGpuPolicyStatus>,
    /// Finalizers to add or remove, by policy.
    pub finalizers: BTreeMap<PolicyName, FinalizerWrite>,
    /// Transitions to report as Events.
    pub events: Vec<Transition>,
    /// Queries that must be answered before more can be decided.
    pub questions: Questions,
    /// When to plan again even if nothing changes.
    pub check_again: Option<Timestamp>,
    /// Every policy's desired status, written or not, for metrics.
    #[serde(skip)]
    pub statuses: BTreeMap<PolicyName, ClusterGpuPolicyStatus>,
    /// The pools whose rollout is halted, by policy, for metrics. A pool's status has one reason, which may be another.
    #[serde(skip)]
    pub halted: BTreeMap<PolicyName, BTreeSet<PoolName>>,
}

/// The write of a policy's finalizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FinalizerWrite {
    /// The UID of the policy, because it may have been deleted and created again by the same name.
    pub uid: String,
    /// Whether to add or remove it.
    pub present: bool,
}

impl Plan {
    /// Returns whether there is nothing to write and nothing to query.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            daemon_sets,
            prune,
            delete_pods,
            pods,
            runtime_classes,
            prune_classes,
            prune_gpu_nodes,
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
            && prune_gpu_nodes.is_empty()
            && prune.is_empty()
            && delete_pods.is_empty()
            && pods.is_empty()
            && labels.is_empty()
            && node_health.is_empty()
            && gpu_nodes.is_empty()
            && policies.is_empty()
            && finalizers.is_empty()
            && questions.is_empty()
    }

    /// Adds the part of another writer.
    pub fn merge(&mut self, part: Self) {
        let Self {
            daemon_sets,
            prune,
            delete_pods,
            pods,
            runtime_classes,
            prune_classes,
            prune_gpu_nodes,
            labels,
            node_health,
            gpu_nodes,
            policies,
            finalizers,
            events,
            questions,
            check_again,
            statuses,
            halted,
        } = part;
        // Not `append`, which rebuilds the whole map: parts are small and many.
        self.daemon_sets.extend(daemon_sets);
        self.prune.extend(prune);
        self.delete_pods.extend(delete_pods);
        self.pods.extend(pods);
        self.runtime_classes.extend(runtime_classes);
        self.prune_classes.extend(prune_classes);
        self.prune_gpu_nodes.extend(prune_gpu_nodes);
        self.labels.extend(labels);
        self.node_health.extend(node_health);
        self.gpu_nodes.extend(gpu_nodes);
        self.policies.extend(policies);
        self.finalizers.extend(finalizers);
        self.events.extend(events);
        self.questions.merge(questions);
        self.check_again = self.check_again.into_iter().chain(check_again).min();
        self.statuses.extend(statuses);
        self.halted.extend(halted);
    }
}
