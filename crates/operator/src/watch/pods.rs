//! The watches of diagnosis: Pending pods of all namespaces, and rejections of pods and of their containers. They wake only the
//! diagnosis, never the reconcile loop, and the operator is ready without them.

use std::sync::Arc;

use futures::future::BoxFuture;
use gpu_operator_diagnose::{PendingPod, RefusedPods};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Api, Client, runtime::watcher};
use tokio::sync::Notify;

use super::{
    event_watch::watch_events,
    follow::{any, follow},
    mirrors::Mirrors,
};

/// The namespace of cluster components, which may use the nodes' drivers and devices directly and are not diagnosed.
const SYSTEM_NAMESPACE: &str = "kube-system";

/// Watches the pods and Events that diagnosis reads, except those in the operator's own namespace, until the returned futures
/// are dropped.
#[must_use]
pub fn follow_pods(client: &Client, namespace: &str, mirrors: &Arc<Mirrors>) -> Vec<BoxFuture<'static, ()>> {
    let fields = format!("status.phase=Pending,metadata.namespace!={namespace},metadata.namespace!={SYSTEM_NAMESPACE}");
    let unused = Arc::<Notify>::default;
    let said = |fields: &str| {
        let fields = format!("{fields},metadata.namespace!={namespace}");
        watch_events(Api::<Event>::all(client.clone()), &fields)
    };
    vec![
        follow(
            watcher(Api::<Pod>::all(client.clone()), any().fields(&fields)),
            Arc::clone(mirrors),
            |mirrors| &mirrors.pending,
            |pod| PendingPod::of(&pod).map(|(uid, pod)| (uid, Some(pod))),
            unused(),
        ),
        follow(
            said("reason=FailedCreate"),
            Arc::clone(mirrors),
            |mirrors| &mirrors.refused,
            |event| RefusedPods::of(&event).map(|(name, refused)| (name, Some(refused))),
            unused(),
        ),
        // A pod whose container is not started leaves Pending soon: kubelet reports it as Running or Failed.
        follow(
            said("reason=Failed,involvedObject.kind=Pod"),
            Arc::clone(mirrors),
            |mirrors| &mirrors.not_started,
            |event| RefusedPods::of(&event).map(|(name, refused)| (name, Some(refused))),
            unused(),
        ),
    ]
}
