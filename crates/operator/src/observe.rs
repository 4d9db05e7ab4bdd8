//! Observe: reads what no mirror holds, such as the pods that use a GPU of a node.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{
    StreamExt,
    future::{join_all, ready},
    stream,
};
use gpu_operator_crd::NodeName;
use gpu_operator_plan::{
    container_names::VALIDATION,
    world::{GpuPods, GpuRequests, LogTails},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, LogParams},
};
use tokio::time::{sleep, timeout};

use crate::error::{Error, request};

/// The maximum number of nodes whose pods are listed concurrently.
const AT_ONCE: usize = 4;
/// How long the pods of all these nodes are waited for: the operator reacts to nothing else in the meantime.
const PODS_WITHIN: Duration = Duration::from_secs(5);
/// How long each log is waited for: a node that does not answer must not delay the pass.
const LOG_WITHIN: Duration = Duration::from_secs(2);
/// The beginning of kubelet's answer if it succeeds without a log.
const NO_LOG: &str = "unable to retrieve container logs";
/// The number of lines that are read from the end of a log.
const LOG_LINES: i64 = 20;
/// The maximum number of bytes of these lines.
const LOG_BYTES: i64 = 4096;

/// Returns the pods that use or offer GPUs, by node; a node whose pods cannot be listed in time is missing. They are listed only for
/// nodes whose driver is about to be replaced or waits for them: pods of users are not cached. This operator's own are in `namespace`.
pub async fn gpu_pods(
    client: &Client,
    namespace: &str,
    nodes: &BTreeSet<NodeName>,
    requests: &GpuRequests,
) -> BTreeMap<NodeName, GpuPods> {
    let pods = Api::<Pod>::all(client.clone());
    let list = async |node: NodeName| {
        // The server excludes pods that have ended.
        let fields = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
        let params = ListParams::default().fields(&fields);
        let found = request(format!("list the pods of node {node}"), pods.list(&params)).await;
        let warn = |error: &Error| tracing::warn!(%error, "the update of a node cannot begin");
        Some((node, GpuPods::of(&found.inspect_err(warn).ok()?.items, requests, namespace)))
    };
    let answers = stream::iter(nodes.iter().cloned()).map(list).buffer_unordered(AT_ONCE);
    let found: BTreeMap<_, _> = answers.take_until(sleep(PODS_WITHIN)).filter_map(ready).collect().await;
    if found.len() < nodes.len() {
        tracing::warn!("the pods of {} of {} nodes could not be listed", nodes.len() - found.len(), nodes.len());
    }
    found
}

/// Returns the ends of the logs of validation pods, or why they cannot be read.
pub async fn log_tails(client: &Client, namespace: &str, pods: &BTreeSet<String>) -> LogTails {
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let params = LogParams {
        // A service mesh may have added another container.
        container: Some(VALIDATION.to_owned()),
        tail_lines: Some(LOG_LINES),
        limit_bytes: Some(LOG_BYTES),
        ..LogParams::default()
    };
    let tail = async |pod: &String| {
        let words = match timeout(LOG_WITHIN, api.logs(pod, &params)).await {
            Ok(Ok(words)) if words.starts_with(NO_LOG) => Err(words.trim().to_owned()),
            Ok(words) => words.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {} s", LOG_WITHIN.as_secs())),
        };
        (pod.clone(), words)
    };
    join_all(pods.iter().map(tail)).await.into_iter().collect()
}
