//! Observe: reads what no mirror holds, such as the pods that use a GPU of a node.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, future::join_all, stream};
use gpu_operator_crd::NodeName;
use gpu_operator_plan::{
    container_names::VALIDATION,
    world::{GpuAsks, GpuPods, LogTails},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, LogParams},
};
use tokio::time::timeout;

use crate::error::{Error, request};

/// The maximum number of nodes whose pods are listed concurrently.
const AT_ONCE: usize = 4;
/// How long each log is waited for: a node that does not answer must not delay the pass.
const LOG_WITHIN: Duration = Duration::from_secs(2);
/// The beginning of kubelet's answer if it succeeds without a log.
const NO_LOG: &str = "unable to retrieve container logs";
/// The number of lines that are read from the end of a log.
const LOG_LINES: i64 = 20;
/// The maximum number of bytes of these lines.
const LOG_BYTES: i64 = 4096;

/// Returns the pods that use or offer GPUs, by node. They are listed only for nodes whose driver is about to be replaced or waits for
/// them: pods of users are not cached. This operator's own are in `namespace`.
///
/// # Errors
/// Returns an error if the API server does not answer. The caller then updates no node.
pub async fn gpu_pods(
    client: &Client,
    namespace: &str,
    nodes: &BTreeSet<NodeName>,
    asks: &GpuAsks,
) -> Result<BTreeMap<NodeName, GpuPods>, Error> {
    let pods = Api::<Pod>::all(client.clone());
    stream::iter(nodes.iter().cloned())
        .map(|node| {
            let pods = pods.clone();
            async move {
                // The server excludes pods that have ended.
                let fields = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
                let params = ListParams::default().fields(&fields);
                let found = request(format!("list the pods of node {node}"), pods.list(&params)).await?;
                Ok((node, GpuPods::of(&found.items, asks, namespace)))
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
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
