//! All mirrors, what they have in common, and what is learned from the answers to writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, NodeName, PolicyName, keys};
use gpu_operator_diagnose::{PendingPod, RefusedPods, Symptoms};
use gpu_operator_plan::world::{
    DaemonSetFacts, ForeignPod, ForeignSet, NodeFacts, PodFacts, Refusal, RuntimeClassFacts, TrimmedNode, World,
    mirror::{Facts, Mirror, Version, observed},
};
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::Pod, node::v1::RuntimeClass},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use kube::{Resource, ResourceExt};
use tokio::sync::Notify;

/// The maximum number of pods, and of rejections, that are diagnosed. If there are more, the others are diagnosed once some of
/// these are gone and the watch restarts.
pub const MAX_PODS: usize = 2000;

/// Returns the resource version of an object.
pub fn version(object: &impl ResourceExt) -> Version {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// A custom resource, or `None` if it cannot be parsed: it can only have been written for another version of the API, and must
/// not be mistaken for a missing object.
pub type Readable<K> = Option<Arc<K>>;

/// A mirror that a watch keeps up to date and the loop reads.
#[derive(Debug)]
pub struct Shared<F, N = String>(RwLock<Mirror<F, N>>);

impl<F, N> Default for Shared<F, N> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<F, N> Shared<F, N> {
    fn of_at_most(most: usize) -> Self {
        Self(RwLock::new(Mirror::of_at_most(most)))
    }

    /// Returns the mirror to read.
    pub fn read(&self) -> RwLockReadGuard<'_, Mirror<F, N>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the mirror to change.
    pub fn write(&self) -> RwLockWriteGuard<'_, Mirror<F, N>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All mirrors.
#[derive(Debug)]
pub struct Mirrors {
    pub(super) policies: Shared<Readable<ClusterGpuPolicy>, PolicyName>,
    pub(super) nodes: Shared<NodeFacts, NodeName>,
    pub(super) gpu_nodes: Shared<Readable<GpuNode>, NodeName>,
    pub(super) daemon_sets: Shared<DaemonSetFacts>,
    /// DaemonSets of all namespaces, `None` for those that are not part of a GPU stack, so that a DaemonSet that ceases to be one is
    /// noticed.
    pub(super) foreign_sets: Shared<Option<ForeignSet>>,
    /// Pods of all namespaces that install a driver.
    pub(super) foreign_pods: Shared<ForeignPod>,
    pub(super) pods: Shared<PodFacts>,
    pub(super) refusals: Shared<Refusal>,
    pub(super) runtime_classes: Shared<RuntimeClassFacts>,
    /// Pending pods of all namespaces that involve GPUs, used only by diagnosis.
    pub(super) pending: Shared<PendingPod>,
    /// Rejections of pods of all namespaces, used only by diagnosis.
    pub(super) refused: Shared<RefusedPods>,
    /// Containers of all namespaces that were not started, used only by diagnosis.
    pub(super) not_started: Shared<RefusedPods>,
    /// Notified of every change of a fact, including changes from the answers to this operator's writes.
    pub(super) changed: Notify,
    clock: fn() -> Timestamp,
}

impl Default for Mirrors {
    fn default() -> Self {
        Self::new(Timestamp::now)
    }
}

impl Mirrors {
    /// Returns empty mirrors, and the clock by which their facts are observed.
    #[must_use]
    pub fn new(clock: fn() -> Timestamp) -> Self {
        Self {
            policies: Shared::default(),
            nodes: Shared::default(),
            gpu_nodes: Shared::default(),
            daemon_sets: Shared::default(),
            pods: Shared::default(),
            refusals: Shared::default(),
            runtime_classes: Shared::default(),
            foreign_sets: Shared::default(),
            foreign_pods: Shared::default(),
            pending: Shared::of_at_most(MAX_PODS),
            refused: Shared::of_at_most(MAX_PODS),
            not_started: Shared::of_at_most(MAX_PODS),
            changed: Notify::new(),
            clock,
        }
    }

    /// Returns the current time in whole seconds, the precision that Kubernetes stores.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_second((self.clock)().as_second()).unwrap_or_default()
    }

    /// Returns the kinds that have not been listed yet. The operator is ready when there are none.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let synced = [
            ("ClusterGpuPolicy", self.policies.read().synced()),
            ("Node", self.nodes.read().synced()),
            ("GpuNode", self.gpu_nodes.read().synced()),
            ("DaemonSet", self.daemon_sets.read().synced() && self.foreign_sets.read().synced()),
            ("Pod", self.pods.read().synced() && self.foreign_pods.read().synced()),
            ("Event", self.refusals.read().synced()),
            ("RuntimeClass", self.runtime_classes.read().synced()),
        ];
        synced.into_iter().filter(|(_, synced)| !synced).map(|(kind, _)| kind).collect()
    }

    /// Updates the mirrors from the answer to a write of this operator, before a watch reports the change, so that the next plan is
    /// not based on the state before the write.
    pub fn learn(&self, answer: Answer) {
        let changed = match answer {
            Answer::Policy(policy) => {
                let version = version(&*policy);
                self.policies.write().set(policy.name_any().into(), version, Some(Arc::new(trimmed(*policy))))
            }
            Answer::GpuNode(gpu_node) => {
                let version = version(&*gpu_node);
                self.gpu_nodes.write().set(gpu_node.name_any().into(), version, Some(Arc::new(trimmed(*gpu_node))))
            }
            Answer::Node(node) => {
                let facts = NodeFacts::of(&node);
                self.nodes.write().set(facts.name.clone(), version(&*node), observed(facts, self.now()))
            }
            Answer::DaemonSet(set) => {
                self.daemon_sets.write().set(set.name_any(), version(&*set), DaemonSetFacts::of(&set))
            }
            Answer::Pod(pod) => PodFacts::of(&pod).is_some_and(|facts| {
                self.pods.write().set(pod.name_any(), version(&*pod), observed(facts, self.now()))
            }),
            Answer::RuntimeClass(class) => {
                self.runtime_classes.write().set(class.name_any(), version(&*class), RuntimeClassFacts::of(&class))
            }
            Answer::Nothing => false,
        };
        if changed {
            self.changed.notify_one();
        }
    }

    /// Waits for the next change of a fact since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the world as the mirrors show it, or `None` until all kinds have been listed.
    #[must_use]
    pub fn world(&self) -> Option<World> {
        let (policies, unreadable_policies) = readable(self.policies.read().facts()?);
        let (gpu_nodes, unreadable_gpu_nodes) = readable(self.gpu_nodes.read().facts()?);
        Some(World {
            policies,
            unreadable_policies,
            nodes: self.nodes.read().facts()?,
            gpu_nodes,
            unreadable_gpu_nodes,
            daemon_sets: self.daemon_sets.read().facts()?,
            foreign_sets: foreign(self.foreign_sets.read().facts()?),
            foreign_pods: self.foreign_pods.read().facts()?,
            pods: self.pods.read().facts()?,
            refusals: self.refusals.read().facts()?,
            runtime_classes: self.runtime_classes.read().facts()?,
            ..World::default()
        })
    }
}

/// The answer of the API server to a write of this operator.
#[derive(Debug)]
pub enum Answer {
    /// The current policy.
    Policy(Box<ClusterGpuPolicy>),
    /// The current GpuNode.
    GpuNode(Box<GpuNode>),
    /// The current Node.
    Node(Box<TrimmedNode>),
    /// The current DaemonSet.
    DaemonSet(Box<DaemonSet>),
    /// The current pod.
    Pod(Box<Pod>),
    /// The current RuntimeClass.
    RuntimeClass(Box<RuntimeClass>),
    /// No object, such as after a deletion.
    Nothing,
}

/// Returns the DaemonSets that are part of a third-party GPU stack.
fn foreign(facts: Facts<Option<ForeignSet>>) -> Facts<ForeignSet> {
    facts.into_iter().filter_map(|(name, set)| Some((name, Arc::new((*set).clone()?)))).collect()
}

/// Returns the objects that could be parsed, and the names of those that could not.
fn readable<K, N: Ord>(facts: Facts<Readable<K>, N>) -> (Facts<K, N>, BTreeSet<N>) {
    let mut unreadable = BTreeSet::new();
    let mut readable = BTreeMap::new();
    for (name, fact) in facts {
        match &*fact {
            Some(object) => drop(readable.insert(name, Arc::clone(object))),
            None => drop(unreadable.insert(name)),
        }
    }
    (readable, unreadable)
}

/// Returns an object without metadata that the plan never reads or that changes with every write. Of the managed fields only the
/// times of the probe's writes are left.
pub fn trimmed<K: Resource>(mut object: K) -> K {
    let meta = object.meta_mut();
    let mut managed = meta.managed_fields.take().unwrap_or_default();
    managed.retain_mut(|entry| {
        entry.fields_v1 = None;
        entry.manager.as_deref() == Some(keys::PROBE_MANAGER)
    });
    let managed_fields = (!managed.is_empty()).then_some(managed);
    *meta = ObjectMeta { managed_fields, resource_version: None, annotations: None, ..std::mem::take(meta) };
    object
}

impl Mirrors {
    /// Returns the pods and rejections as the mirrors show them, or `None` until all kinds have been listed.
    #[must_use]
    pub fn symptoms(&self) -> Option<Symptoms> {
        let mut refused = self.refused.read().facts()?;
        refused.extend(self.not_started.read().facts()?);
        Some(Symptoms { pods: self.pending.read().facts()?, refused, pod_events: BTreeMap::new() })
    }
}
