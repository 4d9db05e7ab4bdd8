//! Watches: mirrors of facts, which wake the reconcile loop when a fact changes.
//!
//! A mirror holds the facts that [`gpu_operator_plan::world`] extracts from an object instead of the object: for a node it stores
//! the labels but not the list of images, and an event that changes no fact, such as a heartbeat, does not wake the loop.

mod mirror;
mod pods;
mod said;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::{Stream, StreamExt, future::BoxFuture};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use gpu_operator_plan::world::{
    DaemonSetFacts, ForeignPod, ForeignSet, NodeFacts, PodFacts, Refusal, RuntimeClassFacts, TrimmedNode, TrimmedPod,
    Words, World,
};
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Event, Pod},
        node::v1::RuntimeClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{WatchStreamExt, watcher},
};
use mirror::{Facts, Mirror, Version};
use said::follow_said;
use tokio::sync::Notify;

use crate::diagnose::{PendingPod, RefusedPods};

pub use pods::follow_pods;

/// The number of objects in a page of a list. A page is held in memory completely.
const PAGE: u32 = 100;

/// Returns the resource version of an object.
fn version(object: &impl ResourceExt) -> Version {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// A custom resource, or `None` if it cannot be parsed: it can only have been written for another version of the API, and must
/// not be mistaken for a missing object.
type Readable<K> = Option<Arc<K>>;

/// All mirrors.
#[derive(Debug)]
pub struct Mirrors {
    policies: Mirror<Readable<ClusterGpuPolicy>>,
    nodes: Mirror<NodeFacts>,
    gpu_nodes: Mirror<Readable<GpuNode>>,
    daemon_sets: Mirror<DaemonSetFacts>,
    /// DaemonSets of all namespaces, `None` for those that are not part of a GPU stack, so that a DaemonSet that ceases to be one is
    /// noticed.
    foreign_sets: Mirror<Option<ForeignSet>>,
    /// Pods of all namespaces that install a driver.
    foreign_pods: Mirror<ForeignPod>,
    pods: Mirror<PodFacts>,
    refusals: Mirror<Refusal>,
    runtime_classes: Mirror<RuntimeClassFacts>,
    /// The interned strings of the facts.
    words: Words,
    /// Pending pods of all namespaces that involve GPUs, used only by diagnosis.
    pending: Mirror<PendingPod>,
    /// Rejections of pods of all namespaces, used only by diagnosis.
    refused: Mirror<RefusedPods>,
    /// Containers of all namespaces that were not started, used only by diagnosis.
    not_started: Mirror<RefusedPods>,
    /// Notified of every change of a fact, including changes from the answers to this operator's writes.
    changed: Notify,
}

impl Default for Mirrors {
    fn default() -> Self {
        Self {
            policies: Mirror::default(),
            nodes: Mirror::default(),
            gpu_nodes: Mirror::default(),
            daemon_sets: Mirror::default(),
            pods: Mirror::default(),
            refusals: Mirror::default(),
            runtime_classes: Mirror::default(),
            foreign_sets: Mirror::default(),
            foreign_pods: Mirror::default(),
            words: Words::default(),
            pending: Mirror::of_at_most(pods::MOST),
            refused: Mirror::of_at_most(pods::MOST),
            not_started: Mirror::of_at_most(pods::MOST),
            changed: Notify::new(),
        }
    }
}

impl Mirrors {
    /// Returns the kinds that have not been listed yet. The operator is ready when there are none.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let synced = [
            ("ClusterGpuPolicy", self.policies.synced()),
            ("Node", self.nodes.synced()),
            ("GpuNode", self.gpu_nodes.synced()),
            ("DaemonSet", self.daemon_sets.synced() && self.foreign_sets.synced()),
            ("Pod", self.pods.synced() && self.foreign_pods.synced()),
            ("Event", self.refusals.synced()),
            ("RuntimeClass", self.runtime_classes.synced()),
        ];
        synced.into_iter().filter(|(_, synced)| !synced).map(|(kind, _)| kind).collect()
    }

    /// Updates the mirrors from the answer to a write of this operator, before a watch reports the change, so that the next plan is
    /// not based on the state before the write.
    pub fn learn(&self, answer: Answer) {
        let changed = match answer {
            Answer::Policy(policy) => {
                let version = version(&*policy);
                self.policies.set(policy.name_any(), version, Some(Arc::new(trimmed(*policy))))
            }
            Answer::GpuNode(gpu_node) => {
                let version = version(&*gpu_node);
                self.gpu_nodes.set(gpu_node.name_any(), version, Some(Arc::new(trimmed(*gpu_node))))
            }
            Answer::Node(node) => self.nodes.set(node.name_any(), version(&*node), NodeFacts::of(&node, &self.words)),
            Answer::DaemonSet(set) => self.daemon_sets.set(set.name_any(), version(&*set), DaemonSetFacts::of(&set)),
            Answer::Pod(pod) => PodFacts::of(&pod, &self.words)
                .is_some_and(|facts| self.pods.set(pod.name_any(), version(&*pod), facts)),
            Answer::RuntimeClass(class) => {
                self.runtime_classes.set(class.name_any(), version(&*class), RuntimeClassFacts::of(&class))
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

    /// Returns the generation of a DaemonSet, or `None` if it is unknown.
    #[must_use]
    pub fn daemon_set_generation(&self, name: &str) -> Option<i64> {
        self.daemon_sets.get(name)?.generation
    }

    /// Returns the world as the mirrors show it, or `None` until all kinds have been listed.
    #[must_use]
    pub fn world(&self) -> Option<World> {
        let (policies, unreadable_policies) = readable(self.policies.facts()?);
        let (gpu_nodes, unreadable_gpu_nodes) = readable(self.gpu_nodes.facts()?);
        Some(World {
            policies,
            unreadable_policies,
            nodes: self.nodes.facts()?,
            gpu_nodes,
            unreadable_gpu_nodes,
            daemon_sets: self.daemon_sets.facts()?,
            foreign_sets: foreign(self.foreign_sets.facts()?),
            foreign_pods: self.foreign_pods.facts()?,
            pods: self.pods.facts()?,
            refusals: self.refusals.facts()?,
            runtime_classes: self.runtime_classes.facts()?,
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

/// Watches all kinds that the plan reads, until the returned futures are dropped.
#[must_use]
pub fn follow_all(
    client: &Client,
    namespace: &str,
    mirrors: &Arc<Mirrors>,
    wake: &Arc<Notify>,
) -> Vec<BoxFuture<'static, ()>> {
    // Selected only by this operator's own label key: NVIDIA's operator has the same name, and objects of this watch are pruned.
    let own = any().labels(keys::STAGE);
    let mirror = || Arc::clone(mirrors);
    let wake = || Arc::clone(wake);
    let all = client.clone();
    let policies = Api::<DeserializeGuard<ClusterGpuPolicy>>::all(all.clone());
    let nodes = Api::<TrimmedNode>::all(all.clone());
    let runtime_classes = Api::<RuntimeClass>::all(all.clone());
    let gpu_nodes = Api::<DeserializeGuard<GpuNode>>::all(all.clone());
    let foreign_sets = Api::<DaemonSet>::all(all.clone());
    let foreign_pods = Api::<TrimmedPod>::all(all);
    let daemon_sets = Api::<DaemonSet>::namespaced(client.clone(), namespace);
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    let refused = follow_said(events, "involvedObject.kind=DaemonSet,reason=FailedCreate");
    vec![
        follow(
            watcher(policies, any()),
            mirror(),
            |mirrors| &mirrors.policies,
            |_, policy| Some(valid(policy)),
            wake(),
        ),
        follow(
            watcher(nodes, any()),
            mirror(),
            |mirrors| &mirrors.nodes,
            |words, node| Some((node.name_any(), NodeFacts::of(&node, words))),
            wake(),
        ),
        follow(
            watcher(gpu_nodes, any()),
            mirror(),
            |mirrors| &mirrors.gpu_nodes,
            |_, gpu_node| Some(valid(gpu_node)),
            wake(),
        ),
        follow(
            watcher(daemon_sets, own),
            mirror(),
            |mirrors| &mirrors.daemon_sets,
            |_, set| Some((set.name_any(), DaemonSetFacts::of(&set))),
            wake(),
        ),
        follow(
            watcher(foreign_sets, any()),
            mirror(),
            |mirrors| &mirrors.foreign_sets,
            |_, set| {
                let name = format!("{}/{}", set.namespace().unwrap_or_default(), set.name_any());
                Some((name, ForeignSet::of(&set)))
            },
            wake(),
        ),
        // No label or field selects the pods that mount the host's driver directory, so all pods that have not ended are checked,
        // one page at a time. Nothing is kept of those that do not install a driver.
        follow(
            watcher(foreign_pods, any().fields("status.phase!=Succeeded,status.phase!=Failed")),
            mirror(),
            |mirrors| &mirrors.foreign_pods,
            |_, pod| ForeignPod::of(&pod),
            wake(),
        ),
        follow(
            watcher(pods, any()),
            mirror(),
            |mirrors| &mirrors.pods,
            |words, pod| Some((pod.name_any(), PodFacts::of(&pod, words)?)),
            wake(),
        ),
        follow(
            watcher(runtime_classes, any()),
            mirror(),
            |mirrors| &mirrors.runtime_classes,
            |_, class| Some((class.name_any(), RuntimeClassFacts::of(&class))),
            wake(),
        ),
        follow(refused, mirror(), |mirrors| &mirrors.refusals, |_, event| Refusal::of(&event), wake()),
    ]
}

/// Returns a watch configuration for all objects, listed page by page.
fn any() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// Returns the DaemonSets that are part of a third-party GPU stack.
fn foreign(facts: Facts<Option<ForeignSet>>) -> Facts<ForeignSet> {
    facts.into_iter().filter_map(|(name, set)| Some((name, Arc::new((*set).clone()?)))).collect()
}

/// Returns the objects that could be parsed, and the names of those that could not.
fn readable<K>(facts: Facts<Readable<K>>) -> (Facts<K>, BTreeSet<String>) {
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

/// Returns a custom resource if it can be parsed. An object that cannot be parsed must not stall the watch.
fn valid<K: Resource<DynamicType = ()>>(guard: DeserializeGuard<K>) -> (String, Readable<K>) {
    let name = guard.name_any();
    let object = guard.0.map(|object| Arc::new(trimmed(object))).inspect_err(|error| {
        tracing::warn!(kind = %K::kind(&()), name, %error, "cannot parse object; leaving what it governs unchanged");
    });
    (name, object.ok())
}

/// Returns an object without metadata that the plan never reads or that changes with every write.
fn trimmed<K: Resource>(mut object: K) -> K {
    let meta = object.meta_mut();
    *meta = ObjectMeta { managed_fields: None, resource_version: None, annotations: None, ..std::mem::take(meta) };
    object
}

/// Keeps one mirror up to date and wakes the loop when a fact in it changes.
fn follow<K, F>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    mirrors: Arc<Mirrors>,
    mirror: fn(&Mirrors) -> &Mirror<F>,
    fact: fn(&Words, K) -> Option<(String, F)>,
    wake: Arc<Notify>,
) -> BoxFuture<'static, ()>
where
    K: Resource<DynamicType = ()> + Send + 'static,
    F: PartialEq + Send + Sync + 'static,
{
    Box::pin(async move {
        let changed_here = &mirrors.changed;
        let mirror = mirror(&mirrors);
        let fact = |object| fact(&mirrors.words, object);
        let mut events = events.default_backoff().boxed();
        while let Some(event) = events.next().await {
            let changed = match event {
                Ok(watcher::Event::Init) => {
                    mirror.begin_list();
                    false
                }
                Ok(watcher::Event::InitApply(object)) => {
                    let version = version(&object);
                    fact(object).is_some_and(|(name, fact)| mirror.list(name, version, fact))
                }
                Ok(watcher::Event::InitDone) => mirror.end_list(),
                Ok(watcher::Event::Apply(object)) => {
                    let version = version(&object);
                    fact(object).is_some_and(|(name, fact)| mirror.set(name, version, fact))
                }
                Ok(watcher::Event::Delete(object)) => {
                    let version = version(&object);
                    fact(object).is_some_and(|(name, _)| mirror.remove(name, version))
                }
                Err(error) => {
                    tracing::warn!(kind = %K::kind(&()), %error, "watch failed; retrying");
                    false
                }
            };
            if changed {
                wake.notify_one();
                changed_here.notify_one();
            }
        }
    })
}
