//! The writes of a plan and their order, for everything that carries out a plan.

use std::{collections::BTreeSet, fmt};

use gpu_operator_crd::{
    ClusterGpuPolicyStatus, GpuNodeStatus, NodeName, PolicyName, PoolName, Revision, keys, policy::Stage,
};
use k8s_openapi::api::{core::v1::Pod, node::v1::RuntimeClass};
use kube::ResourceExt;

use super::{
    daemon_sets::DaemonSetWrite,
    gpu_node::SpecWrite,
    node_labels::LabelWrite,
    plan::{FinalizerWrite, Plan},
};
use crate::{
    revision::daemon_set_name,
    world::{Concern, HealthCondition, TaintFact},
};

/// One write of a plan.
#[derive(Clone, Copy, Debug)]
pub enum Write<'p> {
    /// Add or remove the finalizer of a policy.
    Finalizer(&'p PolicyName, &'p FinalizerWrite),
    /// Apply a DaemonSet.
    DaemonSet(&'p str, &'p DaemonSetWrite),
    /// Apply a RuntimeClass.
    RuntimeClass(&'p str, &'p RuntimeClass),
    /// Apply the spec and the owner of a GpuNode.
    Spec(&'p NodeName, &'p SpecWrite),
    /// Apply the labels of a Node.
    Labels(&'p NodeName, &'p LabelWrite),
    /// Set or remove the health condition of a Node.
    Condition(&'p NodeName, Option<&'p HealthCondition>),
    /// Set or remove the health taint of a Node.
    Taint(&'p NodeName, Option<&'p TaintFact>),
    /// Apply the status of a GpuNode.
    Status(&'p NodeName, &'p GpuNodeStatus),
    /// Delete a DaemonSet.
    Prune(&'p str),
    /// Delete a RuntimeClass.
    PruneClass(&'p str),
    /// Delete a GpuNode with this uid.
    PruneGpuNode(&'p NodeName, &'p str),
    /// Delete a pod.
    Recreate(&'p str),
    /// Create a pod.
    Pod(&'p str, &'p Pod),
    /// Apply the status of a policy.
    PolicyStatus(&'p PolicyName, &'p ClusterGpuPolicyStatus),
}

impl Plan {
    /// Returns the writes in stages. Those of one stage are independent of each other; a stage begins when the previous one has
    /// ended.
    ///
    /// Finalizers are added first and removed last. A node's labels come after the DaemonSets that they name and after the spec of
    /// its GpuNode, which records why they change. Updates that end are written before others begin, so that no reader sees two
    /// nodes of a pool being updated. A status comes after everything that it reports, and that of a policy summarizes its nodes.
    #[must_use]
    pub fn stages(&self) -> [Vec<Write<'_>>; 8] {
        let finalizers = self.finalizers.iter().map(|(name, write)| Write::Finalizer(name, write));
        let (first, last) = finalizers.partition(|write| matches!(write, Write::Finalizer(_, write) if write.present));
        let sets = self.daemon_sets.iter().map(|(name, write)| Write::DaemonSet(name, write));
        let classes = self.runtime_classes.iter().map(|(name, class)| Write::RuntimeClass(name, class));
        let specs = self.gpu_nodes.iter().filter_map(|(name, write)| Some(Write::Spec(name, write.spec.as_ref()?)));
        let (begin, end) = specs.partition(Write::begins_an_update);
        let labels = self.labels.iter().map(|(name, write)| Write::Labels(name, write));
        let health = self.node_health.iter();
        let conditions = health.clone().filter_map(|(name, write)| {
            write.condition.as_ref().map(|condition| Write::Condition(name, condition.as_ref()))
        });
        let taints = health.filter_map(|(name, write)| Some(Write::Taint(name, write.taint.as_ref()?.as_ref())));
        let statuses =
            self.gpu_nodes.iter().filter_map(|(name, write)| Some(Write::Status(name, write.status.as_ref()?)));
        let prune = self.prune.iter().map(|name| Write::Prune(name));
        let prune_classes = self.prune_classes.iter().map(|name| Write::PruneClass(name));
        let prune_gpu_nodes = self.prune_gpu_nodes.iter().map(|(name, uid)| Write::PruneGpuNode(name, uid));
        let recreate = self.recreate.iter().map(|name| Write::Recreate(name));
        let pods = self.pods.iter().map(|(name, pod)| Write::Pod(name, pod));
        [
            first,
            sets.chain(classes).collect(),
            end,
            begin,
            labels.chain(conditions).chain(taints).collect(),
            statuses.chain(prune).chain(prune_classes).chain(prune_gpu_nodes).chain(recreate).chain(pods).collect(),
            self.policies.iter().map(|(name, status)| Write::PolicyStatus(name, status)).collect(),
            last,
        ]
    }
}

impl Write<'_> {
    /// Returns the kind of the written object.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Finalizer(..) | Self::PolicyStatus(..) => "ClusterGpuPolicy",
            Self::DaemonSet(..) | Self::Prune(_) => "DaemonSet",
            Self::RuntimeClass(..) | Self::PruneClass(_) => "RuntimeClass",
            Self::Spec(..) | Self::Status(..) | Self::PruneGpuNode(..) => "GpuNode",
            Self::Labels(..) | Self::Condition(..) | Self::Taint(..) => "Node",
            Self::Recreate(_) | Self::Pod(..) => "Pod",
        }
    }

    /// Returns the part of the fleet that it concerns.
    #[must_use]
    pub fn concerns(&self) -> Concern {
        match self {
            Self::Finalizer(name, _) | Self::PolicyStatus(name, _) => Concern::Policy((*name).clone()),
            Self::Spec(name, _)
            | Self::Status(name, _)
            | Self::PruneGpuNode(name, _)
            | Self::Labels(name, _)
            | Self::Condition(name, _)
            | Self::Taint(name, _) => Concern::Node((*name).clone()),
            Self::DaemonSet(_, write) => {
                let policy = write.set.labels().get(keys::POLICY);
                policy.map_or(Concern::Fleet, |policy| Concern::Policy(policy.as_str().into()))
            }
            Self::Pod(_, pod) => {
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                node.map_or(Concern::Fleet, |node| Concern::Node(node.into()))
            }
            Self::RuntimeClass(..) | Self::Prune(_) | Self::PruneClass(_) | Self::Recreate(_) => Concern::Fleet,
        }
    }

    /// Returns whether a node is in an update after this write, at any step of it.
    #[must_use]
    pub fn begins_an_update(&self) -> bool {
        matches!(self, Self::Spec(_, write) if write.spec.rollout.is_some())
    }
}

/// The action and its object, such as `label node gpu-1`.
impl fmt::Display for Write<'_> {
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
            Self::Recreate(name) => write!(f, "delete pod {name}"),
            Self::Pod(name, _) => write!(f, "create pod {name}"),
        }
    }
}

/// The writes of a plan that have not succeeded, as far as others depend on them.
#[derive(Debug, Default)]
pub struct Unwritten<'p> {
    /// DaemonSets that are not as the plan wants them.
    sets: BTreeSet<&'p str>,
    /// Nodes whose GpuNode's spec does not record what the plan decided.
    nodes: BTreeSet<&'p NodeName>,
    /// Pools in which an update is still recorded although it has ended.
    pools: BTreeSet<&'p (PolicyName, PoolName)>,
}

impl<'p> Unwritten<'p> {
    /// Records a write that has failed or was not made.
    pub fn add(&mut self, write: &Write<'p>) {
        match write {
            Write::DaemonSet(name, _) => drop(self.sets.insert(name)),
            Write::Spec(node, write) => {
                self.nodes.insert(node);
                self.pools.extend(&write.ends);
            }
            _ => {}
        }
    }

    /// Returns whether a write depends on one that is recorded here, so that it is left to a later plan.
    #[must_use]
    pub fn prevents(&self, write: &Write<'p>) -> bool {
        match write {
            Write::Spec(_, write) if write.spec.rollout.is_some() => {
                let pool = write.spec.policy.clone().zip(write.spec.pool.clone());
                pool.is_some_and(|pool| self.pools.contains(&pool))
                    || self.lacks(|stage| write.spec.wanted.get(stage).cloned())
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
