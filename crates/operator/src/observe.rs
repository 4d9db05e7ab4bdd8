//! Observe: reads what no mirror holds, such as the pods that use a GPU of a node.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use gpu_operator_crd::NodeName;
use gpu_operator_plan::{
    container_names::VALIDATION,
    world::{GpuAsks, LogTails, runs_a_container, uses_gpu},
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, LogParams},
};
use tokio::time::timeout;

use crate::error::{Error, request};

/// The maximum number of nodes whose pods are listed concurrently.
const AT_ONCE: usize = 4;
/// The maximum number of logs that are read in one pass, concurrently: a node that does not answer must not delay the others …
const LOGS: usize = 32;
/// … or the pass.
const LOG_WITHIN: Duration = Duration::from_secs(2);
/// The beginning of kubelet's answer if it succeeds without a log.
const NO_LOG: &str = "unable to retrieve container logs";
/// The number of lines that are read from the end of a log.
const LOG_LINES: i64 = 20;
/// The maximum number of bytes of these lines.
const LOG_BYTES: i64 = 4096;

/// The pods that use a GPU, by node: all of them, and those that run a container.
pub type GpuPods = (BTreeMap<NodeName, Vec<String>>, BTreeMap<NodeName, Vec<String>>);

/// Returns the pods that use a GPU, by node. They are listed only for nodes whose driver is about to be replaced or waits for
/// them: pods are not cached.
///
/// # Errors
/// Returns an error if the API server does not answer. The caller then updates no node.
pub async fn gpu_pods(client: &Client, nodes: &BTreeSet<NodeName>, asks: &GpuAsks) -> Result<GpuPods, Error> {
    let pods = Api::<Pod>::all(client.clone());
    let answers: Vec<_> = stream::iter(nodes.iter().cloned())
        .map(|node| {
            let pods = pods.clone();
            async move {
                // The server excludes pods that have ended.
                let fields = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
                let params = ListParams::default().fields(&fields);
                let found = request(format!("list the pods of node {node}"), pods.list(&params)).await?;
                let users: Vec<&Pod> = found.iter().filter(|pod| uses_gpu(pod, asks)).collect();
                let holders = users.iter().copied().filter(|pod| runs_a_container(pod));
                Ok((node, names(users.iter().copied()), names(holders)))
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let (mut all, mut holders) = GpuPods::default();
    for (node, users, running) in answers {
        all.insert(node.clone(), users);
        holders.insert(node, running);
    }
    Ok((all, holders))
}

fn names<'p>(pods: impl Iterator<Item = &'p Pod>) -> Vec<String> {
    let name = |pod: &Pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    let mut names: Vec<_> = pods.map(name).collect();
    names.sort();
    names
}

/// Returns the ends of the logs of validation pods, or why they cannot be read. At most `LOGS` pods are read, in rotation.
pub async fn log_tails(client: &Client, namespace: &str, pods: &BTreeSet<String>, now: Timestamp) -> LogTails {
    let turn = usize::try_from(now.as_second()).unwrap_or_default() * LOGS % pods.len().max(1);
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let params = LogParams {
        // A service mesh may have added another container.
        container: Some(VALIDATION.to_owned()),
        tail_lines: Some(LOG_LINES),
        limit_bytes: Some(LOG_BYTES),
        ..LogParams::default()
    };
    stream::iter(pods.iter().cycle().skip(turn).take(LOGS.min(pods.len())).cloned())
        .map(|pod| {
            let (api, params) = (api.clone(), &params);
            async move {
                let words = match timeout(LOG_WITHIN, api.logs(&pod, params)).await {
                    Ok(Ok(words)) if words.starts_with(NO_LOG) => Err(words.trim().to_owned()),
                    Ok(words) => words.map_err(|error| error.to_string()),
                    Err(_) => Err(format!("no answer within {} s", LOG_WITHIN.as_secs())),
                };
                (pod, words)
            }
        })
        .buffer_unordered(LOGS)
        .collect()
        .await
}
