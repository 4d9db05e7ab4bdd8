//! The agent's watches: the fleet's Nodes, the pods on them and their GpuNodes; and, to know when nothing happens any more,
//! changes of policies and DaemonSets.

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

use super::{agent::Agent, node::MEMBER_LABEL, pod::PlacedPod, slot::Slot};

/// Returns the futures of all watches, which never return.
pub(super) fn all(client: &Client, agent: &Arc<Agent>) -> Vec<BoxFuture<'static, ()>> {
    let any = watcher::Config::default;
    let members = any().labels(&format!("{}={}", MEMBER_LABEL.0, MEMBER_LABEL.1));
    let resource = ApiResource::erase::<GpuNode>(&());
    let nodes = watcher(Api::<PartialObjectMeta<Node>>::all(client.clone()), members);
    let pods = watcher(Api::<Pod>::all(client.clone()), any().fields("spec.nodeName!="));
    let gpu_nodes = watcher(Api::<DynamicObject>::all_with(client.clone(), &resource), any());
    vec![
        Box::pin(follow(nodes, Arc::clone(agent))),
        Box::pin(follow(pods, Arc::clone(agent))),
        Box::pin(follow(gpu_nodes, Arc::clone(agent))),
        Box::pin(note_changes::<ClusterGpuPolicy>(client.clone(), Arc::clone(agent))),
        Box::pin(note_changes::<DaemonSet>(client.clone(), Arc::clone(agent))),
    ]
}

/// The identity of an object, and the node that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Identity {
    node: String,
    uid: String,
}

/// A kind whose objects belong to one node each.
trait OfNode: Sized {
    /// Returns the object's identity; `None` if it does not belong to a node yet.
    fn identity(&self) -> Option<Identity>;
    /// Updates the slot after the object was created or changed.
    fn apply(self, slot: &mut Slot);
    /// Updates the slot after the object was deleted.
    fn remove(uid: &str, slot: &mut Slot);
}

impl OfNode for PartialObjectMeta<Node> {
    fn identity(&self) -> Option<Identity> {
        Some(Identity { node: self.name_any(), uid: self.uid()? })
    }

    fn apply(self, slot: &mut Slot) {
        slot.present = true;
        slot.labels = self.metadata.labels.unwrap_or_default();
    }

    fn remove(_: &str, slot: &mut Slot) {
        slot.present = false;
    }
}

impl OfNode for Pod {
    fn identity(&self) -> Option<Identity> {
        Some(Identity { node: self.spec.as_ref()?.node_name.clone()?, uid: self.uid()? })
    }

    fn apply(self, slot: &mut Slot) {
        let uid = self.uid().unwrap_or_default();
        match PlacedPod::of(self) {
            Some(placed) => slot.place(placed),
            None => slot.remove_pod(&uid),
        }
    }

    fn remove(uid: &str, slot: &mut Slot) {
        slot.remove_pod(uid);
    }
}

/// A `GpuNode`, read as the probe reads it.
impl OfNode for DynamicObject {
    fn identity(&self) -> Option<Identity> {
        Some(Identity { node: self.name_any(), uid: self.uid()? })
    }

    fn apply(self, slot: &mut Slot) {
        slot.seen = GpuNodeView::Present(Box::new(GpuNodeFields::from(self)));
    }

    fn remove(_: &str, slot: &mut Slot) {
        slot.seen = GpuNodeView::Absent;
        slot.forget_report();
    }
}

/// Watches a kind, restarts the watch after errors, and updates the slots of the agent.
async fn follow<K: OfNode>(events: impl Stream<Item = watcher::Result<Event<K>>>, agent: Arc<Agent>) {
    let mut events = std::pin::pin!(events.default_backoff());
    let mut known = HashSet::new();
    let mut listed: Vec<K> = Vec::new();
    let remove = |id: &Identity| agent.change(&id.node, |slot| K::remove(&id.uid, slot));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => listed.push(object),
            Ok(Event::InitDone) => {
                // Deleted objects first: they may have been created again under the same name.
                let now: HashSet<_> = listed.iter().filter_map(OfNode::identity).collect();
                known.difference(&now).for_each(remove);
                known.clear();
                listed.drain(..).for_each(|object| apply(object, &mut known, &agent));
            }
            Ok(Event::Apply(object)) => apply(object, &mut known, &agent),
            Ok(Event::Delete(object)) => {
                if let Some(id) = object.identity() {
                    known.remove(&id);
                    remove(&id);
                }
            }
            // The watch is restarted. Before the chart is installed its kinds do not exist.
            Err(_) => {}
        }
    }
}

fn apply<K: OfNode>(object: K, known: &mut HashSet<Identity>, agent: &Arc<Agent>) {
    if let Some(id) = object.identity() {
        agent.change(&id.node, |slot| object.apply(slot));
        known.insert(id);
    }
}

/// Records activity whenever an object of a kind changes.
async fn note_changes<K>(client: Client, agent: Arc<Agent>)
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
