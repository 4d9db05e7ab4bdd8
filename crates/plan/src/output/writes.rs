//! The writes of a plan and their order, for everything that carries out a plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    mem::take,
    sync::Arc,
};

use gpu_operator_crd::{
    ClusterGpuPolicyStatus, GpuNodeStatus, NodeName, PolicyName, PoolName, Revision, keys, policy::Stage,
};
use k8s_openapi::api::{core::v1::Pod, node::v1::RuntimeClass};
use kube::ResourceExt;

use super::{
    daemon_sets::DaemonSetWrite,
    gpu_node::{GpuNodeWrite, SpecWrite},
    node_health::NodeHealthWrite,
    node_labels::LabelWrite,
    plan::{FinalizerWrite, Plan},
};
use crate::{
    revision::daemon_set_name,
    world::{Concern, HealthCondition, TaintFact},
};

/// One write of a plan.
#[derive(Clone, Debug)]
pub enum Write {
    /// Add or remove the finalizer of a policy.
    Finalizer(PolicyName, FinalizerWrite),
    /// Apply a DaemonSet.
    DaemonSet(String, Box<DaemonSetWrite>),
    /// Apply a RuntimeClass.
    RuntimeClass(String, Box<RuntimeClass>),
    /// Apply the spec and the owner of a GpuNode.
    Spec(NodeName, Box<SpecWrite>),
    /// Apply the labels of a Node.
    Labels(NodeName, LabelWrite),
    /// Set or remove the health condition of a Node.
    Condition(NodeName, Option<HealthCondition>),
    /// Set or remove the health taint of a Node.
    Taint(NodeName, Option<TaintFact>),
    /// Apply the status of a GpuNode.
    Status(NodeName, Box<GpuNodeStatus>),
    /// Delete a DaemonSet.
    Prune(String),
    /// Delete a RuntimeClass.
    PruneClass(String),
    /// Delete a GpuNode with this uid.
    PruneGpuNode(NodeName, String),
    /// Delete a pod.
    DeletePod(String),
    /// Create a pod.
    Pod(String, Box<Pod>),
    /// Apply the status of a policy.
    PolicyStatus(PolicyName, Box<ClusterGpuPolicyStatus>),
}

/// Writes in stages. Those of one stage are independent of each other; a stage begins when the previous one has ended.
pub type Stages = Vec<Vec<Arc<Write>>>;

impl Plan {
    /// Takes the writes out of the plan, in stages without empty ones.
    ///
    /// Finalizers are added first and removed last. A node's labels come after the DaemonSets that they name and after the spec of
    /// its GpuNode, which records why they change. Updates that end are written before others begin, so that no reader sees two
    /// nodes of a pool being updated. A status comes after everything that it reports, and that of a policy summarizes its nodes.
    #[must_use]
    pub fn take_writes(&mut self) -> Stages {
        let finalizers = take(&mut self.finalizers).into_iter();
        let (first, last) = finalizers.partition(|(_, write)| write.present);
        let finalizers = |writes: BTreeMap<_, _>| writes.into_iter().map(|(name, write)| Write::Finalizer(name, write));
        let (mut specs, mut statuses) = (Vec::new(), Vec::new());
        for (name, GpuNodeWrite { spec, status }) in take(&mut self.gpu_nodes) {
            specs.extend(spec.map(|spec| Write::Spec(name.clone(), Box::new(spec))));
            statuses.extend(status.map(|status| Write::Status(name, Box::new(status))));
        }
        let (begin, end) = specs.into_iter().partition(Write::begins_an_update);
        let (mut conditions, mut taints) = (Vec::new(), Vec::new());
        for (name, NodeHealthWrite { condition, taint }) in take(&mut self.node_health) {
            conditions.extend(condition.map(|condition| Write::Condition(name.clone(), condition)));
            taints.extend(taint.map(|taint| Write::Taint(name, taint)));
        }
        let sets = take(&mut self.daemon_sets).into_iter().map(|(name, write)| Write::DaemonSet(name, Box::new(write)));
        let classes = take(&mut self.runtime_classes).into_iter();
        let classes = classes.map(|(name, class)| Write::RuntimeClass(name, Box::new(class)));
        let labels = take(&mut self.labels).into_iter().map(|(name, write)| Write::Labels(name, write));
        let gpu_nodes = take(&mut self.prune_gpu_nodes).into_iter();
        let pods = take(&mut self.pods).into_iter().map(|(name, pod)| Write::Pod(name, Box::new(pod)));
        statuses.extend(take(&mut self.prune).into_iter().map(Write::Prune));
        statuses.extend(take(&mut self.prune_classes).into_iter().map(Write::PruneClass));
        statuses.extend(gpu_nodes.map(|(name, uid)| Write::PruneGpuNode(name, uid)));
        statuses.extend(take(&mut self.delete_pods).into_iter().map(Write::DeletePod));
        statuses.extend(pods);
        let policies = take(&mut self.policies).into_iter();
        let policies = policies.map(|(name, status)| Write::PolicyStatus(name, Box::new(status)));
        let stages: [Vec<Write>; 8] = [
            finalizers(first).collect(),
            sets.chain(classes).collect(),
            end,
            begin,
            labels.chain(conditions).chain(taints).collect(),
            statuses,
            policies.collect(),
            finalizers(last).collect(),
        ];
        let stages = stages.into_iter().filter(|stage| !stage.is_empty());
        stages.map(|stage| stage.into_iter().map(Arc::new).collect()).collect()
    }
}

impl Write {
    /// Returns the kind of the written object.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Finalizer(..) | Self::PolicyStatus(..) => "ClusterGpuPolicy",
            Self::DaemonSet(..) | Self::Prune(_) => "DaemonSet",
            Self::RuntimeClass(..) | Self::PruneClass(_) => "RuntimeClass",
            Self::Spec(..) | Self::Status(..) | Self::PruneGpuNode(..) => "GpuNode",
            Self::Labels(..) | Self::Condition(..) | Self::Taint(..) => "Node",
            Self::DeletePod(_) | Self::Pod(..) => "Pod",
        }
    }

    /// Returns the part of the fleet that it concerns.
    #[must_use]
    pub fn concerns(&self) -> Concern {
        match self {
            Self::Finalizer(name, _) | Self::PolicyStatus(name, _) => Concern::Policy(name.clone()),
            Self::Spec(name, _)
            | Self::Status(name, _)
            | Self::PruneGpuNode(name, _)
            | Self::Labels(name, _)
            | Self::Condition(name, _)
            | Self::Taint(name, _) => Concern::Node(name.clone()),
            Self::DaemonSet(_, write) => {
                let policy = write.set.labels().get(keys::POLICY);
                policy.map_or(Concern::Fleet, |policy| Concern::Policy(policy.as_str().into()))
            }
            Self::Pod(_, pod) => {
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                node.map_or(Concern::Fleet, |node| Concern::Node(node.into()))
            }
            Self::RuntimeClass(..) | Self::Prune(_) | Self::PruneClass(_) | Self::DeletePod(_) => Concern::Fleet,
        }
    }

    /// Returns whether a node is in an update after this write, at any step of it.
    #[must_use]
    pub fn begins_an_update(&self) -> bool {
        matches!(self, Self::Spec(_, write) if write.spec.rollout.is_some())
    }
}

/// The action and its object, such as `label node gpu-1`.
impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finalizer(name, write) => {
                write!(f, "{} the finalizer of policy {name}", if write.present { "add" } else { "remove" })
            }
            Self::PolicyStatus(name, _) => write!(f, "apply the status of policy {name}"),
            Self::DaemonSet(name, _) => write!(f, "apply DaemonSet {name}"),
            Self::Prune(name) => write!(f, "delete DaemonSet {name}"),
            Self::RuntimeClass(name, _) => write!(f, "apply RuntimeClass {name}"),
            Self::PruneClass(name) => write!(f, "delete RuntimeClass {name}"),
            Self::Spec(name, _) => write!(f, "apply the spec of GpuNode {name}"),
            Self::Status(name, _) => write!(f, "apply the status of GpuNode {name}"),
            Self::Labels(name, _) => write!(f, "label node {name}"),
            Self::Condition(name, _) => write!(f, "set the health condition of node {name}"),
            Self::Taint(name, _) => write!(f, "set the health taint of node {name}"),
            Self::PruneGpuNode(name, _) => write!(f, "delete GpuNode {name}"),
            Self::DeletePod(name) => write!(f, "delete pod {name}"),
            Self::Pod(name, _) => write!(f, "create pod {name}"),
        }
    }
}

/// The writes of a plan that have not succeeded, as far as others depend on them.
#[derive(Clone, Debug, Default, Hash)]
pub struct Unwritten {
    /// DaemonSets that are not as the plan wants them.
    sets: BTreeSet<String>,
    /// Nodes whose GpuNode's spec does not record what the plan decided.
    nodes: BTreeSet<NodeName>,
    /// Pools in which an update is still recorded although it has ended.
    pools: BTreeSet<(PolicyName, PoolName)>,
}

impl Unwritten {
    /// Records a write that has failed or was not made.
    pub fn add(&mut self, write: &Write) {
        match write {
            Write::DaemonSet(name, _) => drop(self.sets.insert(name.clone())),
            Write::Spec(node, write) => {
                self.nodes.insert(node.clone());
                self.pools.extend(write.ends.clone());
            }
            _ => {}
        }
    }

    /// Returns whether a write depends on one that is recorded here, so that it is left to a later plan.
    #[must_use]
    pub fn prevents(&self, write: &Write) -> bool {
        match write {
            Write::Spec(_, write) => {
                let begins = || {
                    let pool = write.spec.policy.clone().zip(write.spec.pool.clone());
                    pool.is_some_and(|pool| self.pools.contains(&pool))
                        || self.lacks(|stage| write.spec.wanted.get(stage).cloned())
                };
                self.lacks(|stage| write.records.get(stage).cloned()) || write.spec.rollout.is_some() && begins()
            }
            // A label that names a DaemonSet that does not exist would remove the pods that the node has.
            Write::Labels(node, write) => {
                let named = |stage: Stage| write.labels.get(stage.key()).map(|group| group.as_str().into());
                self.nodes.contains(node) || self.lacks(named)
            }
            _ => false,
        }
    }

    fn lacks(&self, named: impl Fn(Stage) -> Option<Revision>) -> bool {
        let is_unwritten =
            |stage| named(stage).is_some_and(|group| self.sets.contains(daemon_set_name(stage, &group).as_str()));
        !self.sets.is_empty() && Stage::ALL.into_iter().any(is_unwritten)
    }
}
