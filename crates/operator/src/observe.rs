//! Observe: reads what no mirror holds, such as the pods that use a GPU of a node.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{
    AsyncReadExt, StreamExt,
    future::{join_all, ready},
    stream,
};
use gpu_operator_common::text::clipped;
use gpu_operator_crd::NodeName;
use gpu_operator_plan::{
    container_names::VALIDATION,
    world::{GpuPods, GpuRequests, LogTails, without_details},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, LogParams},
};
use tokio::time::{sleep, timeout};

use crate::{
    error::{Error, request},
    extract::{Extract, Extracted},
    watch::MAX_ELEMENTS,
};

const AT_ONCE: usize = 4;
/// How long the pods of all these nodes are waited for: the operator reacts to nothing else in the meantime.
const PODS_WITHIN: Duration = Duration::from_secs(5);
/// How long each log is waited for: a node that does not answer must not delay the pass.
const LOG_WITHIN: Duration = Duration::from_secs(2);
/// The beginning of kubelet's answer if it succeeds without a log.
const NO_LOG: &str = "unable to retrieve container logs";
/// The number of lines that are read from the end of a log.
const LOG_LINES: i64 = 20;
const LOG_BYTES: u16 = 4096;
/// The number of pods in a page of the list of a node's pods. Kubelet runs 110 by default.
const PAGE: u32 = 500;

#[derive(Clone, Debug)]
struct NodePod {
    pod: Pod,
    is_complete: bool,
}

impl Extract for NodePod {
    type Object = Pod;
    const MAX_ELEMENTS: usize = MAX_ELEMENTS;

    fn extract(pod: Pod, is_complete: bool) -> Self {
        Self { pod: without_details(pod), is_complete }
    }
}

/// Returns the pods that use or offer GPUs, by node. A node whose pods cannot be listed in time is missing. Only nodes
/// are asked whose driver is about to be replaced or waits for its users: pods of users are not cached. This operator's
/// own pods are in `namespace`.
pub async fn gpu_pods(
    client: &Client,
    namespace: &str,
    nodes: &BTreeSet<NodeName>,
    requests: &GpuRequests,
) -> BTreeMap<NodeName, GpuPods> {
    let list = async |node: NodeName| {
        let found = gpu_pods_of(client, namespace, &node, requests).await;
        let warn = |error: &Error| tracing::warn!(%error, "the update of a node cannot begin");
        Some((node, found.inspect_err(warn).ok()?))
    };
    let answers = stream::iter(nodes.iter().cloned()).map(list).buffer_unordered(AT_ONCE);
    let found: BTreeMap<_, _> = answers.take_until(sleep(PODS_WITHIN)).filter_map(ready).collect().await;
    if found.len() < nodes.len() {
        tracing::warn!("the pods of {} of {} nodes could not be listed", nodes.len() - found.len(), nodes.len());
    }
    found
}

async fn gpu_pods_of(
    client: &Client,
    namespace: &str,
    node: &NodeName,
    requests: &GpuRequests,
) -> Result<GpuPods, Error> {
    let api = Api::<Extracted<NodePod>>::all(client.clone());
    // The server excludes pods that have ended.
    let fields = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
    let mut params = ListParams::default().fields(&fields).limit(PAGE);
    let mut found = GpuPods::default();
    loop {
        let page = request(format!("list the pods of node {node}"), api.list(&params)).await?;
        // Which GPUs it uses is not certain.
        if let Some(pod) = page.items.iter().find(|pod| !pod.part.is_complete) {
            let message = format!("pod {} has more than {MAX_ELEMENTS} elements", pod.name_any());
            let source = kube::Error::Service(message.into());
            return Err(Error::Failed { what: format!("list the pods of node {node}"), source });
        }
        let pods: Vec<_> = page.items.into_iter().map(|pod| pod.part.pod).collect();
        found.add(GpuPods::of(&pods, requests, namespace));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}

/// Returns the ends of the logs of validation pods, or why they cannot be read.
pub async fn log_tails(client: &Client, namespace: &str, pods: &BTreeSet<String>) -> LogTails {
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let params = LogParams {
        // A service mesh may have added another container.
        container: Some(VALIDATION.to_owned()),
        tail_lines: Some(LOG_LINES),
        limit_bytes: Some(LOG_BYTES.into()),
        ..LogParams::default()
    };
    let tail = async |pod: &String| {
        let words = match timeout(LOG_WITHIN, log(&api, pod, &params)).await {
            Ok(Ok(words)) if words.starts_with(NO_LOG) => Err(words.trim().to_owned()),
            Ok(words) => words.map_err(|error| clipped(&error.to_string(), LOG_BYTES.into()).to_owned()),
            Err(_) => Err(format!("no answer within {} s", LOG_WITHIN.as_secs())),
        };
        (pod.clone(), words)
    };
    join_all(pods.iter().map(tail)).await.into_iter().collect()
}

/// Reads a log. Kubelet should apply the limits, but the node may not be what it was.
async fn log(api: &Api<Pod>, pod: &str, params: &LogParams) -> kube::Result<String> {
    let stream = api.log_stream(pod, params).await?;
    let mut bytes = Vec::new();
    stream.take(LOG_BYTES.into()).read_to_end(&mut bytes).await.map_err(kube::Error::ReadEvents)?;
    // The limit may cut a character.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
