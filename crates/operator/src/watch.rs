//! Watches: mirrors of facts, which wake the reconcile loop when a fact changes.
//!
//! A mirror holds the facts that [`gpu_operator_plan::world`] extracts from an object instead of the object: for a node it stores
//! the labels but not the list of images, and an event that changes no fact, such as a heartbeat, does not wake the loop.

mod event_watch;
mod fact;
mod follow;
mod mirrors;

use std::sync::Arc;

use event_watch::watch_events;
use follow::{any, follow, if_served};
use futures::future::BoxFuture;
use gpu_operator_crd::keys::{self, GPU_DRIVER};
use kube::{Api, Client, runtime::watcher};
use tokio::sync::Notify;

pub use fact::MAX_ELEMENTS;
pub use follow::{Known, watch_named};
pub use mirrors::{Answer, Mirrors};

/// Watches all kinds that the plan reads, until the returned futures are dropped.
pub fn follow_all(
    client: &Client,
    namespace: &str,
    mirrors: &Arc<Mirrors>,
    wake: &Arc<Notify>,
) -> Vec<BoxFuture<'static, ()>> {
    // Selected only by this operator's own label key: NVIDIA's operator has the same name, and objects of this watch are pruned.
    let own = any().labels(keys::STAGE);
    // No label or field selects the pods that mount the host's driver directory, so all pods that have not ended are checked,
    // one page at a time, except this operator's, of which each change would be sent and parsed twice. Nothing is kept of those
    // that are no evidence of a GPU stack.
    let not_ended = any().fields("status.phase!=Succeeded,status.phase!=Failed").labels(&format!("!{}", keys::STAGE));
    let of_gpus = any().fields(&format!("spec.driver={GPU_DRIVER}"));
    let client = || client.clone();
    let events = |fields| watch_events(Api::namespaced(client(), namespace), fields);
    let refused = events("involvedObject.kind=DaemonSet,reason=FailedCreate");
    let unmounted = events("involvedObject.kind=Pod,reason=FailedMount");
    vec![
        follow(watcher(Api::all(client()), any()), mirrors, |mirrors| &mirrors.policies, wake),
        follow(watcher(Api::all(client()), any()), mirrors, |mirrors| &mirrors.nodes, wake),
        follow(watcher(Api::all(client()), any()), mirrors, |mirrors| &mirrors.gpu_nodes, wake),
        follow(watcher(Api::namespaced(client(), namespace), own), mirrors, |mirrors| &mirrors.daemon_sets, wake),
        follow(watcher(Api::all(client()), any()), mirrors, |mirrors| &mirrors.foreign_sets, wake),
        follow(watcher(Api::all(client()), not_ended), mirrors, |mirrors| &mirrors.foreign_pods, wake),
        follow(watcher(Api::namespaced(client(), namespace), any()), mirrors, |mirrors| &mirrors.pods, wake),
        follow(watcher(Api::all(client()), any()), mirrors, |mirrors| &mirrors.runtime_classes, wake),
        follow(if_served(watcher(Api::all(client()), of_gpus)), mirrors, |mirrors| &mirrors.gpu_slices, wake),
        follow(refused, mirrors, |mirrors| &mirrors.refusals, wake),
        follow(unmounted, mirrors, |mirrors| &mirrors.unmounted, wake),
    ]
}
