//! Observe: the world as the mirrors show it, and the answers to what no mirror holds.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::ListParams};

use crate::{
    error::{Error, request},
    world::{GpuAsks, uses_gpu},
};

/// Nodes that are looked at side by side.
const AT_ONCE: usize = 4;

/// The pods that use a GPU, by node. Asked for only where a driver is about to move: no cache of all pods is kept.
///
/// # Errors
/// When the API server does not answer; nothing is moved then.
pub async fn gpu_pods(
    client: &Client,
    nodes: &BTreeSet<String>,
    asks: &GpuAsks,
) -> Result<BTreeMap<String, Vec<String>>, Error> {
    let pods = Api::<Pod>::all(client.clone());
    stream::iter(nodes.iter().cloned())
        .map(|node| {
            let pods = pods.clone();
            async move {
                // Ended pods are left out by the server.
                let fields = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
                let params = ListParams::default().fields(&fields);
                let found = request(format!("list the pods of node {node}"), pods.list(&params)).await?;
                let mut names: Vec<_> = found
                    .iter()
                    .filter(|pod| uses_gpu(pod, asks))
                    .map(|pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()))
                    .collect();
                names.sort();
                Ok((node, names))
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}
