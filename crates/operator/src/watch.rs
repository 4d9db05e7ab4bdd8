//! Watches: mirrors of facts, which wake the reconcile loop when a fact changes.
//!
//! A mirror holds the facts that [`gpu_operator_plan::world`] extracts from an object instead of the object: for a node it stores
//! the labels but not the list of images, and an event that changes no fact, such as a heartbeat, does not wake the loop.

mod event_watch;
mod follow;
mod mirrors;
mod pods;

use std::sync::Arc;

use event_watch::watch_events;
use follow::{any, follow, valid};
use futures::future::BoxFuture;
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, NodeName, PolicyName, keys};
use gpu_operator_plan::world::{
    DaemonSetFacts, ForeignPod, ForeignSet, NodeFacts, PodFacts, Refusal, RuntimeClassFacts, TrimmedNode, TrimmedPod,
};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Event, Pod},
    node::v1::RuntimeClass,
};
use kube::{Api, Client, ResourceExt, core::DeserializeGuard, runtime::watcher};
use tokio::sync::Notify;

pub use mirrors::{Answer, Mirrors};
pub use pods::follow_pods;

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
    let refused = watch_events(events, "involvedObject.kind=DaemonSet,reason=FailedCreate");
    vec![
        follow(
            watcher(policies, any()),
            mirror(),
            |mirrors| &mirrors.policies,
            |policy| Some(valid(policy, PolicyName::from)),
            wake(),
        ),
        follow(watcher(nodes, any()), mirror(), |mirrors| &mirrors.nodes, |node| Some(facts_of_node(&node)), wake()),
        follow(
            watcher(gpu_nodes, any()),
            mirror(),
            |mirrors| &mirrors.gpu_nodes,
            |gpu_node| Some(valid(gpu_node, NodeName::from)),
            wake(),
        ),
        follow(
            watcher(daemon_sets, own),
            mirror(),
            |mirrors| &mirrors.daemon_sets,
            |set| Some((set.name_any(), Some(DaemonSetFacts::of(&set)))),
            wake(),
        ),
        follow(
            watcher(foreign_sets, any()),
            mirror(),
            |mirrors| &mirrors.foreign_sets,
            |set| Some((format!("{}/{}", set.namespace()?, set.name_any()), Some(ForeignSet::of(&set)))),
            wake(),
        ),
        // No label or field selects the pods that mount the host's driver directory, so all pods that have not ended are checked,
        // one page at a time. Nothing is kept of those that do not install a driver.
        follow(
            watcher(foreign_pods, any().fields("status.phase!=Succeeded,status.phase!=Failed")),
            mirror(),
            |mirrors| &mirrors.foreign_pods,
            |pod| Some((ForeignPod::key(&pod)?, ForeignPod::of(&pod))),
            wake(),
        ),
        follow(
            watcher(pods, any()),
            mirror(),
            |mirrors| &mirrors.pods,
            |pod| Some((pod.name_any(), PodFacts::of(&pod))),
            wake(),
        ),
        follow(
            watcher(runtime_classes, any()),
            mirror(),
            |mirrors| &mirrors.runtime_classes,
            |class| Some((class.name_any(), Some(RuntimeClassFacts::of(&class)))),
            wake(),
        ),
        follow(
            refused,
            mirror(),
            |mirrors| &mirrors.refusals,
            |event| Refusal::of(&event).map(|(set, refusal)| (set, Some(refusal))),
            wake(),
        ),
    ]
}

fn facts_of_node(node: &TrimmedNode) -> (NodeName, Option<NodeFacts>) {
    let facts = NodeFacts::of(node);
    (facts.name.clone(), Some(facts))
}
