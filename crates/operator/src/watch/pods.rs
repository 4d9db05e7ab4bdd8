//! The watches of diagnosis: Pending pods of all namespaces, and rejections of pods and of their containers. They wake only the
//! diagnosis, never the reconcile loop, and the operator is ready without them.

use std::sync::Arc;

use futures::future::BoxFuture;
use kube::{Api, Client, runtime::watcher};

use super::{
    event_watch::watch_events,
    follow::{any, follow},
    mirrors::Mirrors,
};

/// The namespace of cluster components, which may use the nodes' drivers and devices directly and are not diagnosed.
const SYSTEM_NAMESPACE: &str = "kube-system";

/// Watches the pods and Events that diagnosis reads, except those in the operator's own namespace, until the returned futures
/// are dropped.
pub fn follow_pods(client: &Client, namespace: &str, mirrors: &Arc<Mirrors>) -> Vec<BoxFuture<'static, ()>> {
    let fields = format!("status.phase=Pending,metadata.namespace!={namespace},metadata.namespace!={SYSTEM_NAMESPACE}");
    let wakes_nothing = Arc::default();
    let all = || client.clone();
    let said = |fields: &str| {
        let fields = format!("{fields},metadata.namespace!={namespace}");
        watch_events(Api::all(all()), &fields)
    };
    let refused = said("reason=FailedCreate");
    // A pod whose container is not started leaves Pending soon: kubelet reports it as Running or Failed.
    let not_started = said("reason=Failed,involvedObject.kind=Pod");
    vec![
        follow(watcher(Api::all(all()), any().fields(&fields)), mirrors, |mirrors| &mirrors.pending, &wakes_nothing),
        follow(refused, mirrors, |mirrors| &mirrors.refused, &wakes_nothing),
        follow(not_started, mirrors, |mirrors| &mirrors.not_started, &wakes_nothing),
    ]
}
