//! What the API server stores, with resource versions, and what its watches send.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use gpu_operator_common::mirror::{Mirror, Version};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode};
use gpu_operator_plan::world::{NodeFacts, PodFacts};
use k8s_openapi::api::apps::v1::DaemonSet;

use crate::sim::Sim;

/// A kind that the operator watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Policy,
    Node,
    GpuNode,
    DaemonSet,
    Pod,
}

impl Kind {
    pub const ALL: [Self; 5] = [Self::Policy, Self::Node, Self::GpuNode, Self::DaemonSet, Self::Pod];
}

/// Kind and name of an object.
pub type Key = (Kind, String);

#[derive(Clone, Debug)]
pub enum Object {
    Policy(Arc<ClusterGpuPolicy>),
    Node(Arc<NodeFacts>),
    GpuNode(Arc<GpuNode>),
    DaemonSet(Arc<DaemonSet>),
    Pod(Arc<PodFacts>),
    /// A policy or GpuNode that another version of the API has written.
    Unparsable,
}

/// A type of which objects are made.
trait Content: Clone + Debug {
    fn wrap(&self) -> Object;
    fn is(&self, object: &Object) -> bool;
}

macro_rules! content {
    ($($kind:ident $content:ty),*) => {$(
        impl Content for $content {
            fn wrap(&self) -> Object {
                Object::$kind(Arc::new(self.clone()))
            }
            fn is(&self, object: &Object) -> bool {
                matches!(object, Object::$kind(content) if **content == *self)
            }
        }
    )*};
}

content!(Policy ClusterGpuPolicy, Node NodeFacts, GpuNode GpuNode, DaemonSet DaemonSet, Pod PodFacts);

/// The content of an object, unless it cannot be parsed.
#[derive(Clone, Debug)]
struct Parsed<C>(Option<C>);

impl<C: Content> Content for Parsed<&C> {
    fn wrap(&self) -> Object {
        self.0.map_or(Object::Unparsable, Content::wrap)
    }
    fn is(&self, object: &Object) -> bool {
        self.0.map_or(matches!(object, Object::Unparsable), |content| content.is(object))
    }
}

/// A stored object.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The version with which an object of this name was created, in place of its uid.
    pub born: Version,
    pub version: Version,
    /// The hash of the content.
    pub hash: u64,
    pub object: Object,
}

impl PartialEq for Stored {
    fn eq(&self, other: &Self) -> bool {
        (self.born, self.hash) == (other.born, other.hash)
    }
}

/// A change of an object, as a watch sends it; `None` if it was deleted.
#[derive(Clone, Debug)]
pub struct Change {
    pub key: Key,
    pub version: Version,
    pub stored: Option<Stored>,
}

impl Change {
    /// Passes the change to the mirror of its kind as its watch does, and returns whether a fact changed.
    pub fn reach(self, mirror: &mut Mirror<Stored>) -> bool {
        match self.stored {
            Some(stored) => mirror.set(self.key.1, self.version, stored),
            None => mirror.remove(&self.key.1, self.version),
        }
    }
}

/// The objects as the API server stores them.
#[derive(Clone, Default)]
pub struct Store {
    version: Version,
    objects: BTreeMap<Key, Stored>,
}

impl Store {
    pub fn get(&self, key: &Key) -> Option<&Stored> {
        self.objects.get(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Stored)> {
        self.objects.iter()
    }

    /// Records what has changed in the cluster since the last call, and returns the changes.
    pub fn record(&mut self, sim: &Sim) -> Vec<Change> {
        let mut changes = Vec::new();
        self.compare(Kind::Policy, &sim.policies, &sim.unparsable_policies, &mut changes);
        self.compare(Kind::Node, &sim.nodes, &BTreeSet::new(), &mut changes);
        self.compare(Kind::GpuNode, &sim.gpu_nodes, &sim.unparsable_gpu_nodes, &mut changes);
        self.compare(Kind::DaemonSet, &sim.sets, &BTreeSet::new(), &mut changes);
        self.compare(Kind::Pod, &sim.pods, &BTreeSet::new(), &mut changes);
        changes
    }

    fn compare<N: Ord + ToString, C: Content>(
        &mut self,
        kind: Kind,
        current: &BTreeMap<N, C>,
        unparsable: &BTreeSet<N>,
        changes: &mut Vec<Change>,
    ) {
        let parsed = |(name, content)| (N::to_string(name), Parsed((!unparsable.contains(name)).then_some(content)));
        let current: BTreeMap<String, Parsed<&C>> = current.iter().map(parsed).collect();
        let known = self.objects.keys().filter(|(of, _)| *of == kind);
        let gone: Vec<Key> = known.filter(|(_, name)| !current.contains_key(name)).cloned().collect();
        for key in gone {
            self.version += 1;
            self.objects.remove(&key);
            changes.push(Change { key, version: self.version, stored: None });
        }
        for (name, content) in current {
            let key = (kind, name);
            let before = self.objects.get(&key);
            if before.is_some_and(|before| content.is(&before.object)) {
                continue;
            }
            self.version += 1;
            let born = before.map_or(self.version, |before| before.born);
            let stored = Stored { born, version: self.version, hash: hash_of(&content), object: content.wrap() };
            self.objects.insert(key.clone(), stored.clone());
            changes.push(Change { key, version: self.version, stored: Some(stored) });
        }
    }
}

/// Returns the hash of what a value looks like.
pub fn hash_of(value: &impl Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{value:?}").hash(&mut hasher);
    hasher.finish()
}
