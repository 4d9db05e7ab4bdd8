//! All mirrors, what they have in common, what is learned from the answers to writes, and which CRDs are outdated.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use gpu_operator_common::mirror::{Mirror, Version};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, NodeName, PolicyName, SchemaMismatch, schema_revision::crd_names};
use gpu_operator_plan::{
    output::{
        body::{Body, Kind},
        write::Write,
    },
    revision,
    rollout::ledger,
    world::{
        DaemonSetFacts, ForeignPod, ForeignSet, GpuSlice, NodeFacts, PodFacts, Refusal, RuntimeClassFacts, TrimmedNode,
        World,
    },
};
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::Pod, node::v1::RuntimeClass},
    jiff::Timestamp,
};
use kube::ResourceExt;

use super::fact::{Fact, MirrorOf, Parsed, Readable, observe};
use crate::extract::Guarded;

pub fn version(object: &impl ResourceExt) -> Version {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// A mirror that a watch keeps up to date and the loop reads.
#[derive(Debug)]
pub struct Shared<F: Fact>(RwLock<MirrorOf<F>>);

impl<F: Fact> Default for Shared<F> {
    fn default() -> Self {
        Self(RwLock::new(Mirror::of_at_most(F::MOST)))
    }
}

impl<F: Fact> Shared<F> {
    pub fn read(&self) -> RwLockReadGuard<'_, MirrorOf<F>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, MirrorOf<F>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the facts of one object, observed at `now`, by a method of the mirror. Returns whether they changed.
    pub fn put(&self, put: Put<F>, name: F::Name, version: Version, mut fact: F, now: Timestamp) -> bool {
        let mut mirror = self.write();
        observe(&mut fact, &name, &mirror, now);
        put(&mut mirror, name, version, fact)
    }
}

type Put<F> = fn(&mut MirrorOf<F>, <F as Fact>::Name, Version, F) -> bool;

/// The clock by which facts are observed.
#[derive(Debug)]
struct Clock(fn() -> Timestamp);

impl Default for Clock {
    fn default() -> Self {
        Self(Timestamp::now)
    }
}

#[derive(Debug, Default)]
pub struct Mirrors {
    pub(super) policies: Shared<Readable<ClusterGpuPolicy>>,
    pub(super) nodes: Shared<NodeFacts>,
    pub(super) gpu_nodes: Shared<Readable<GpuNode>>,
    pub(super) daemon_sets: Shared<DaemonSetFacts>,
    /// DaemonSets of all namespaces that may be part of a third-party GPU stack.
    pub(super) foreign_sets: Shared<ForeignSet>,
    /// Pods of all namespaces that are evidence of a third-party GPU stack.
    pub(super) foreign_pods: Shared<ForeignPod>,
    pub(super) pods: Shared<PodFacts>,
    pub(super) refusals: Shared<Refusal>,
    /// Rejections of volumes.
    pub(super) unmounted: Shared<Refusal>,
    pub(super) runtime_classes: Shared<RuntimeClassFacts>,
    /// The slices of DRA drivers that allocate GPUs.
    pub(super) gpu_slices: Shared<GpuSlice>,
    crds: Crds,
    clock: Clock,
}

impl Mirrors {
    pub fn new(clock: fn() -> Timestamp) -> Self {
        Self { clock: Clock(clock), ..Self::default() }
    }

    /// Returns the current time in whole seconds, the precision that Kubernetes stores.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_second((self.clock.0)().as_second()).unwrap_or_default()
    }

    /// Returns the kinds that have not been listed yet. The operator is ready when there are none.
    pub fn missing(&self) -> Vec<&'static str> {
        let synced = [
            ("ClusterGpuPolicy", self.policies.read().synced()),
            ("Node", self.nodes.read().synced()),
            ("GpuNode", self.gpu_nodes.read().synced()),
            ("DaemonSet", self.daemon_sets.read().synced() && self.foreign_sets.read().synced()),
            ("Pod", self.pods.read().synced() && self.foreign_pods.read().synced()),
            ("Event", self.refusals.read().synced() && self.unmounted.read().synced()),
            ("RuntimeClass", self.runtime_classes.read().synced()),
            ("ResourceSlice", self.gpu_slices.read().synced()),
            ("CustomResourceDefinition", self.crds.answered()),
        ];
        synced.into_iter().filter(|(_, synced)| !synced).map(|(kind, _)| kind).collect()
    }

    /// Updates the mirrors from the answer to a write of this operator. A watch reports the change later, and the next
    /// plan must not be based on the state before the write.
    pub fn learn(&self, answer: Answer) {
        match answer {
            Answer::Policy(policy) => self.answered(&self.policies, *policy),
            Answer::GpuNode(gpu_node) => self.answered(&self.gpu_nodes, *gpu_node),
            Answer::Node(node) => self.answered(&self.nodes, *node),
            Answer::DaemonSet(set) => self.answered(&self.daemon_sets, *set),
            Answer::Pod(pod) => self.answered(&self.pods, *pod),
            Answer::RuntimeClass(class) => self.answered(&self.runtime_classes, *class),
            Answer::Nothing => {}
        }
    }

    /// Sets whether a CRD is older than this operator. Returns whether that changed.
    pub fn learn_crd(&self, crd: &'static str, outdated: Option<SchemaMismatch>) -> bool {
        self.crds.put(crd, outdated)
    }

    /// Returns a CRD that is older than this operator: what is written may lose fields.
    pub fn outdated_crd(&self) -> Option<SchemaMismatch> {
        self.crds.outdated()
    }

    /// Returns whether this operator may lead: no CRD is older.
    pub fn may_lead(&self) -> bool {
        self.crds.answered() && self.crds.outdated().is_none()
    }

    fn answered<F: Fact>(&self, mirror: &Shared<F>, object: F::Object) {
        let version = version(&object);
        if let Some((name, Some(fact))) = F::read(object) {
            mirror.put(Mirror::learn, name, version, fact, self.now());
        }
    }

    /// Returns the world as the mirrors show it, or `None` until all kinds have been listed, and while a CRD is outdated.
    pub fn world(&self) -> Option<World> {
        if !self.may_lead() {
            return None;
        }
        let Parsed { readable: policies, unreadable: unreadable_policies } = self.policies.read().facts()?;
        let Parsed { readable: gpu_nodes, unreadable: unreadable_gpu_nodes } = self.gpu_nodes.read().facts()?;
        let mut refusals = self.refusals.read().facts()?;
        for (pod, refusal) in &self.unmounted.read().facts()? {
            refusals.insert(pod.clone(), Arc::clone(refusal));
        }
        Some(World {
            policies,
            unreadable_policies,
            nodes: self.nodes.read().facts()?,
            gpu_nodes,
            unreadable_gpu_nodes,
            daemon_sets: self.daemon_sets.read().facts()?,
            foreign_sets: self.foreign_sets.read().facts()?,
            foreign_pods: self.foreign_pods.read().facts()?,
            pods: self.pods.read().facts()?,
            refusals,
            runtime_classes: self.runtime_classes.read().facts()?,
            gpu_slices: self.gpu_slices.read().facts()?,
            ..World::default()
        })
    }

    /// Returns the newest known version of the object of a write that depends on the state for which it was planned.
    /// `Ok(None)`: the write depends on nothing. `Err`: the object has changed since in what matters to the write.
    pub fn planned_for(&self, write: &Write) -> Result<Option<Version>, Outdated> {
        let name = write.target.name.as_str();
        let (version, is_same) = match &write.body {
            Body::Spec(planned) if planned.uid.is_some() => {
                let (mirror, name) = (self.gpu_nodes.read(), name.into());
                let same = |known: &GpuNode| known.metadata.generation == planned.generation;
                (
                    mirror.version::<NodeName>(&name),
                    mirror.get::<NodeName>(&name).and_then(Option::as_deref).is_some_and(same),
                )
            }
            Body::Labels(planned) => {
                let (mirror, name) = (self.nodes.read(), name.into());
                let same = |known: &NodeFacts| revision::labelled_revisions(known) == planned.seen;
                (mirror.version::<NodeName>(&name), mirror.get::<NodeName>(&name).is_some_and(same))
            }
            Body::Ledger(planned) => {
                let (mirror, name) = (self.policies.read(), name.into());
                let same = |known: &ClusterGpuPolicy| {
                    let before = (&*planned.before.0, &*planned.before.1);
                    known.metadata.generation == planned.generation && ledger::recorded(known) == before
                };
                (
                    mirror.version::<PolicyName>(&name),
                    mirror.get::<PolicyName>(&name).and_then(Option::as_deref).is_some_and(same),
                )
            }
            Body::Delete(None) => {
                return Ok(match write.target.kind {
                    Kind::DaemonSet => self.daemon_sets.read().version(name),
                    Kind::RuntimeClass => self.runtime_classes.read().version(name),
                    Kind::ClusterGpuPolicy | Kind::GpuNode | Kind::Node | Kind::Pod => None,
                });
            }
            _ => return Ok(None),
        };
        version.filter(|_| is_same).map(Some).ok_or(Outdated)
    }
}

/// The object of a write has changed since the write was planned.
#[derive(Clone, Copy, Debug)]
pub struct Outdated;

/// The answer of the API server to a write of this operator.
#[derive(Debug)]
pub enum Answer {
    Policy(Box<Guarded<ClusterGpuPolicy>>),
    GpuNode(Box<Guarded<GpuNode>>),
    Node(Box<TrimmedNode>),
    DaemonSet(Box<DaemonSet>),
    Pod(Box<Pod>),
    RuntimeClass(Box<RuntimeClass>),
    /// No object, such as after a deletion.
    Nothing,
}

/// The CRDs about which the API server has answered, by name. One that is older than this operator has an entry with the difference.
#[derive(Debug, Default)]
struct Crds(RwLock<BTreeMap<&'static str, Option<SchemaMismatch>>>);

impl Crds {
    fn put(&self, crd: &'static str, outdated: Option<SchemaMismatch>) -> bool {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(crd, outdated.clone()) != Some(outdated)
    }

    fn answered(&self) -> bool {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        crd_names().iter().all(|crd| known.contains_key(crd))
    }

    fn outdated(&self) -> Option<SchemaMismatch> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().flatten().next().cloned()
    }
}

#[cfg(test)]
mod tests {
    use gpu_operator_common::mirror::Facts;
    use gpu_operator_plan::world::ObservedTime;

    use super::*;
    use crate::watch::fact::Reading;

    /// A fact with the minute at which another machine says that it began.
    #[derive(Clone, Debug, PartialEq)]
    struct Began(ObservedTime);

    impl Fact for Began {
        type Object = Pod;
        type Name = String;
        type View = Facts<Self>;

        fn read(_: Pod) -> Reading<Self> {
            None
        }

        fn times(&mut self) -> Vec<&mut ObservedTime> {
            vec![&mut self.0]
        }
    }

    #[test]
    fn a_reported_time_keeps_when_it_was_first_observed() {
        let minute = |minute: i64| Timestamp::from_second(minute * 60).unwrap();
        let mirror = Shared::<Began>::default();
        let put = |put, now, (name, version, reported): (&str, Version, i64)| {
            mirror.put(put, name.to_owned(), version, Began(minute(reported).into()), minute(now));
        };
        let list = |now, objects: &[(&str, Version, i64)]| {
            mirror.write().begin_list();
            for object in objects {
                put(Mirror::list, now, *object);
            }
            mirror.write().end_list();
        };
        let local = |name: &str| mirror.read().get(name).unwrap().0.local();
        list(10, &[("past", 1, 2), ("future", 1, 30)]);
        assert_eq!(local("past"), minute(2), "it began before this operator");
        assert_eq!(local("future"), minute(10), "that clock is ahead");
        put(Mirror::set, 11, ("behind", 2, 2));
        assert_eq!(local("behind"), minute(11));
        list(12, &[("behind", 3, 2), ("future", 3, 30), ("new", 3, 2)]);
        assert_eq!(["behind", "future", "new"].map(local), [11, 10, 12].map(minute));
        put(Mirror::set, 13, ("future", 4, 31));
        assert_eq!(local("future"), minute(13), "it began again");
    }
}
