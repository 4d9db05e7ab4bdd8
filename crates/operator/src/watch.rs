//! Watches: mirrors of facts, which wake the loop when a fact has changed.
//!
//! A mirror holds what [`crate::world`] takes out of an object, not the object: a node costs its labels and not its
//! list of images, and an event that changes no fact, such as a heartbeat, wakes nobody.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use futures::{StreamExt, future::BoxFuture};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Event, Node, Pod},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use crate::world::{DaemonSetFacts, NodeFacts, PodFacts, Refusal, World};

/// The facts of all objects of one kind, by name.
type Facts<F> = BTreeMap<String, Arc<F>>;

/// A mirror of one kind.
#[derive(Debug)]
pub struct Mirror<F> {
    /// `None` until the kind has been listed once.
    facts: RwLock<Option<Facts<F>>>,
}

impl<F> Default for Mirror<F> {
    fn default() -> Self {
        Self { facts: RwLock::new(None) }
    }
}

impl<F: PartialEq> Mirror<F> {
    /// The facts as they are, once there are any.
    #[must_use]
    pub fn facts(&self) -> Option<Facts<F>> {
        self.facts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the kind has been listed.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.facts.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Puts one object's facts in place, or takes them out; whether that changed anything.
    fn set(&self, name: String, fact: Option<F>) -> bool {
        let mut facts = self.facts.write().unwrap_or_else(PoisonError::into_inner);
        let facts = facts.get_or_insert_default();
        match fact {
            None => facts.remove(&name).is_some(),
            Some(fact) if facts.get(&name).is_some_and(|known| **known == fact) => false,
            Some(fact) => {
                facts.insert(name, Arc::new(fact));
                true
            }
        }
    }

    /// Puts a whole list in place; whether that changed anything.
    fn replace(&self, list: Facts<F>) -> bool {
        let mut facts = self.facts.write().unwrap_or_else(PoisonError::into_inner);
        let changed = facts.as_ref() != Some(&list);
        *facts = Some(list);
        changed
    }
}

/// All mirrors.
#[derive(Debug, Default)]
pub struct Mirrors {
    policies: Mirror<ClusterGpuPolicy>,
    nodes: Mirror<NodeFacts>,
    gpu_nodes: Mirror<GpuNode>,
    daemon_sets: Mirror<DaemonSetFacts>,
    pods: Mirror<PodFacts>,
    refusals: Mirror<Refusal>,
}

impl Mirrors {
    /// The kinds that have not been listed yet: what the operator is not ready for want of.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let synced = [
            ("ClusterGpuPolicy", self.policies.synced()),
            ("Node", self.nodes.synced()),
            ("GpuNode", self.gpu_nodes.synced()),
            ("DaemonSet", self.daemon_sets.synced()),
            ("Pod", self.pods.synced()),
            ("Event", self.refusals.synced()),
        ];
        synced.into_iter().filter(|(_, synced)| !synced).map(|(kind, _)| kind).collect()
    }

    /// The world as the mirrors show it, once all kinds have been listed.
    #[must_use]
    pub fn world(&self) -> Option<World> {
        Some(World {
            policies: self.policies.facts()?,
            nodes: self.nodes.facts()?,
            gpu_nodes: self.gpu_nodes.facts()?,
            daemon_sets: self.daemon_sets.facts()?,
            pods: self.pods.facts()?,
            refusals: self.refusals.facts()?,
            ..World::default()
        })
    }
}

/// Follows every kind that the plan reads, until dropped.
#[must_use]
pub fn follow_all(
    client: &Client,
    namespace: &str,
    mirrors: &Arc<Mirrors>,
    wake: &Arc<Notify>,
) -> Vec<BoxFuture<'static, ()>> {
    let any = watcher::Config::default;
    let ours = any().labels(&format!("{}={}", keys::MANAGED_BY, keys::MANAGER));
    let refused = any().fields("involvedObject.kind=DaemonSet,reason=FailedCreate");
    let mirror = || Arc::clone(mirrors);
    let wake = || Arc::clone(wake);
    let all = client.clone();
    let policies = Api::<DeserializeGuard<ClusterGpuPolicy>>::all(all.clone());
    let nodes = Api::<Node>::all(all.clone());
    let gpu_nodes = Api::<DeserializeGuard<GpuNode>>::all(all);
    let daemon_sets = Api::<PartialObjectMeta<DaemonSet>>::namespaced(client.clone(), namespace);
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    vec![
        follow(policies, any(), mirror(), |mirrors| &mirrors.policies, valid, wake()),
        follow(
            nodes,
            any(),
            mirror(),
            |mirrors| &mirrors.nodes,
            |node| Some((node.name_any(), NodeFacts::of(&node))),
            wake(),
        ),
        follow(gpu_nodes, any(), mirror(), |mirrors| &mirrors.gpu_nodes, valid, wake()),
        follow(
            daemon_sets,
            ours,
            mirror(),
            |mirrors| &mirrors.daemon_sets,
            |set| Some((set.name_any(), DaemonSetFacts::of(&set))),
            wake(),
        ),
        follow(
            pods,
            any(),
            mirror(),
            |mirrors| &mirrors.pods,
            |pod| Some((pod.name_any(), PodFacts::of(&pod)?)),
            wake(),
        ),
        follow(events, refused, mirror(), |mirrors| &mirrors.refusals, |event| Refusal::of(&event), wake()),
    ]
}

/// An object of ours without what the plan never reads. One that does not fit its type (it can only be of another
/// version of the API) is passed over, rather than stalling the watch.
fn valid<K: Resource<DynamicType = ()>>(guard: DeserializeGuard<K>) -> Option<(String, K)> {
    let name = guard.name_any();
    match guard.0 {
        Ok(mut object) => {
            let meta = object.meta_mut();
            *meta =
                ObjectMeta { managed_fields: None, resource_version: None, annotations: None, ..std::mem::take(meta) };
            Some((name, object))
        }
        Err(error) => {
            tracing::warn!(kind = %K::kind(&()), name, %error, "an object does not fit its type and is passed over");
            None
        }
    }
}

/// Keeps one mirror up to date and wakes the loop when a fact in it has changed.
fn follow<K, F>(
    api: Api<K>,
    config: watcher::Config,
    mirrors: Arc<Mirrors>,
    mirror: fn(&Mirrors) -> &Mirror<F>,
    fact: fn(K) -> Option<(String, F)>,
    wake: Arc<Notify>,
) -> BoxFuture<'static, ()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    F: PartialEq + Send + Sync + 'static,
{
    Box::pin(async move {
        let mirror = mirror(&mirrors);
        let mut events = watcher(api, config).default_backoff().boxed();
        let mut list: Facts<F> = BTreeMap::new();
        while let Some(event) = events.next().await {
            let changed = match event {
                Ok(watcher::Event::Init) => {
                    list.clear();
                    false
                }
                Ok(watcher::Event::InitApply(object)) => {
                    list.extend(fact(object).map(|(name, fact)| (name, Arc::new(fact))));
                    false
                }
                Ok(watcher::Event::InitDone) => mirror.replace(std::mem::take(&mut list)),
                Ok(watcher::Event::Apply(object)) => {
                    fact(object).is_some_and(|(name, fact)| mirror.set(name, Some(fact)))
                }
                Ok(watcher::Event::Delete(object)) => fact(object).is_some_and(|(name, _)| mirror.set(name, None)),
                Err(error) => {
                    tracing::warn!(kind = %K::kind(&()), %error, "a watch failed and is tried again");
                    false
                }
            };
            if changed {
                wake.notify_one();
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fact_that_differs_counts_as_a_change() {
        let mirror = Mirror::default();
        assert!(!mirror.synced());
        assert!(mirror.set("a".into(), Some(1)));
        assert!(!mirror.set("a".into(), Some(1)));
        assert!(mirror.set("a".into(), Some(2)));
        assert!(mirror.set("a".into(), None));
        assert!(!mirror.set("a".into(), None));
    }

    #[test]
    fn a_list_takes_the_place_of_what_was_known() {
        let mirror = Mirror::default();
        mirror.set("gone".into(), Some(1));
        assert!(mirror.replace(BTreeMap::from([("here".to_owned(), Arc::new(2))])));
        assert!(!mirror.replace(BTreeMap::from([("here".to_owned(), Arc::new(2))])));
        assert_eq!(mirror.facts().unwrap_or_default().keys().collect::<Vec<_>>(), ["here"]);
    }
}
