//! What the agent sees of the API: the fleet's Nodes, the pods on them, their GpuNodes, and, to know when all is quiet,
//! that something happens to what governs them.

use std::{collections::HashSet, fmt::Debug, sync::Arc};

use futures::{Stream, StreamExt, future::BoxFuture};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, Pod},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject},
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use nvml_probe::report::gpu_node::{GpuNodeFields, GpuNodeView};
use serde::de::DeserializeOwned;

use super::{
    agent::{Agent, Slot},
    node::MEMBER,
    pod::PlacedPod,
};

/// All watches, until dropped.
pub(super) fn follow_all(client: &Client, agent: &Arc<Agent>) -> Vec<BoxFuture<'static, ()>> {
    let any = watcher::Config::default;
    let members = any().labels(&format!("{}={}", MEMBER.0, MEMBER.1));
    let resource = ApiResource::erase::<GpuNode>(&());
    let nodes = watcher(Api::<PartialObjectMeta<Node>>::all(client.clone()), members);
    let pods = watcher(Api::<Pod>::all(client.clone()), any().fields("spec.nodeName!="));
    let gpu_nodes = watcher(Api::<DynamicObject>::all_with(client.clone(), &resource), any());
    vec![
        Box::pin(follow(nodes, Arc::clone(agent))),
        Box::pin(follow(pods, Arc::clone(agent))),
        Box::pin(follow(gpu_nodes, Arc::clone(agent))),
        Box::pin(notice::<ClusterGpuPolicy>(client.clone(), Arc::clone(agent))),
        Box::pin(notice::<DaemonSet>(client.clone(), Arc::clone(agent))),
    ]
}

/// An object, and the node that it is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Identity {
    node: String,
    uid: String,
}

/// A kind of which every object is of one node.
trait OfNode: Sized {
    /// Which object it is; nothing for one that is of no node yet.
    fn identity(&self) -> Option<Identity>;
    /// The object is there, as it is now.
    fn appear(self, slot: &mut Slot);
    /// The object is gone.
    fn vanish(uid: &str, slot: &mut Slot);
}

impl OfNode for PartialObjectMeta<Node> {
    fn identity(&self) -> Option<Identity> {
        Some(Identity { node: self.name_any(), uid: self.uid()? })
    }

    fn appear(self, slot: &mut Slot) {
        slot.present = true;
        slot.labels = self.metadata.labels.unwrap_or_default();
    }

    fn vanish(_: &str, slot: &mut Slot) {
        slot.present = false;
    }
}

impl OfNode for Pod {
    fn identity(&self) -> Option<Identity> {
        Some(Identity { node: self.spec.as_ref()?.node_name.clone()?, uid: self.uid()? })
    }

    fn appear(self, slot: &mut Slot) {
        match PlacedPod::of(&self) {
            Some(placed) => drop(slot.pods.insert(placed.uid.clone(), placed)),
            None => slot.lose_pod(&self.uid().unwrap_or_default()),
        }
    }

    fn vanish(uid: &str, slot: &mut Slot) {
        slot.lose_pod(uid);
    }
}

/// A `GpuNode`, read as the probe reads it.
impl OfNode for DynamicObject {
    fn identity(&self) -> Option<Identity> {
        Some(Identity { node: self.name_any(), uid: self.uid()? })
    }

    fn appear(self, slot: &mut Slot) {
        slot.seen = GpuNodeView::Present(Box::new(GpuNodeFields::from(self)));
    }

    fn vanish(_: &str, slot: &mut Slot) {
        slot.seen = GpuNodeView::Absent;
        slot.forget_report();
    }
}

/// Follows a kind through any error, and tells the agent what is there and what is no longer.
async fn follow<K: OfNode>(events: impl Stream<Item = watcher::Result<Event<K>>>, agent: Arc<Agent>) {
    let mut events = std::pin::pin!(events.default_backoff());
    let mut known = HashSet::new();
    let mut listed: Vec<K> = Vec::new();
    let vanish = |id: &Identity| agent.change(&id.node, |slot| K::vanish(&id.uid, slot));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => listed.push(object),
            Ok(Event::InitDone) => {
                // What is gone first: it may have been made anew under its name.
                let now: HashSet<_> = listed.iter().filter_map(OfNode::identity).collect();
                known.difference(&now).for_each(vanish);
                known.clear();
                listed.drain(..).for_each(|object| appear(object, &mut known, &agent));
            }
            Ok(Event::Apply(object)) => appear(object, &mut known, &agent),
            Ok(Event::Delete(object)) => {
                if let Some(id) = object.identity() {
                    known.remove(&id);
                    vanish(&id);
                }
            }
            // It is tried again; before the chart is installed our own kinds are not there.
            Err(_) => {}
        }
    }
}

fn appear<K: OfNode>(object: K, known: &mut HashSet<Identity>, agent: &Arc<Agent>) {
    if let Some(id) = object.identity() {
        agent.change(&id.node, |slot| object.appear(slot));
        known.insert(id);
    }
}

/// Tells the agent that something happens to objects of a kind.
async fn notice<K>(client: Client, agent: Arc<Agent>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut events =
        std::pin::pin!(watcher(Api::<PartialObjectMeta<K>>::all(client), watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        if matches!(event, Ok(Event::Apply(_) | Event::Delete(_))) {
            agent.note_activity();
        }
    }
}
