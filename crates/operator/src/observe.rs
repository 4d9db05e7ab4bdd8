//! Observe: the world as the mirrors show it, and the answers to what no mirror holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use gpu_operator_plan::{
    container_names::VALIDATION,
    world::{GpuAsks, LastWords, runs_a_container, uses_gpu},
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, LogParams},
};
use tokio::time::timeout;

use crate::error::{Error, request};

/// Nodes that are looked at side by side.
const AT_ONCE: usize = 4;
/// Logs that are read in one pass, side by side: a node that does not answer must not keep the others waiting, …
const LOGS: usize = 32;
/// … and not the pass either.
const LOG_WITHIN: Duration = Duration::from_secs(2);
/// How kubelet's words begin where it answers well and has no log.
const NO_LOG: &str = "unable to retrieve container logs";
/// Lines of a log that are read, the last ones.
const LOG_LINES: i64 = 20;
/// Bytes of those.
const LOG_BYTES: i64 = 4096;

/// The pods that use a GPU, by node: all, and those that run a container.
pub type GpuPods = (BTreeMap<String, Vec<String>>, BTreeMap<String, Vec<String>>);

/// The pods that use a GPU, by node. Asked for only where a driver is about to move, or waits for them: no cache of all pods
/// is kept.
///
/// # Errors
/// When the API server does not answer; nothing is moved then.
pub async fn gpu_pods(client: &Client, nodes: &BTreeSet<String>, asks: &GpuAsks) -> Result<GpuPods, Error> {
    let pods = Api::<Pod>::all(client.clone());
    let answers: Vec<_> = stream::iter(nodes.iter().cloned())
        .map(|node| {
            let pods = pods.clone();
            async move {
                // Ended pods are left out by the server.
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

/// The ends of the logs of pods of ours, of some of them at a time and of others at another, or why they cannot be had.
pub async fn last_words(client: &Client, namespace: &str, pods: &BTreeSet<String>, now: Timestamp) -> LastWords {
    let turn = usize::try_from(now.as_second()).unwrap_or_default() * LOGS % pods.len().max(1);
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let params = LogParams {
        // A service mesh may have added another one.
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
