//! Measures the operator while an update of the driver waits for GPU pods on all nodes of a settled fleet, and when one of them ends.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use cluster_client::handle::Cluster;
use gpu_operator_crd::GpuNode;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::{
    fleets::{Bench, name, pause},
    table::{Column, reads, requests},
    update::DRIVER,
};

/// The time after the change of the policy in which everything becomes known.
const BEGINS: Duration = Duration::from_mins(2);
/// The time after that.
const WAITS: Duration = Duration::from_mins(8);
/// The namespace of the pods.
const NAMESPACE: &str = "default";
/// How long the update of a free node may take.
const FREED_WITHIN: Duration = Duration::from_mins(5);

/// Measures a fleet of `nodes` nodes in a cluster without nodes.
pub(super) async fn measure(cluster: &Cluster, operator: &Path, nodes: u32) -> Result<Column> {
    let (bench, _) = Box::pin(Bench::installed(cluster, operator, nodes)).await?;
    let pods = Api::<Pod>::namespaced(cluster.client(), NAMESPACE);
    for index in 0..nodes as usize {
        pods.create(&PostParams::default(), &pod(&name(index))?).await?;
    }
    bench.quiet().await?;
    let spec = json!({"defaults": {"driver": {"version": DRIVER}}});
    let begins = async {
        bench.apply(spec).await?;
        pause(BEGINS).await
    };
    let begins = bench.requests_while("the driver is changed, and all nodes are busy", Box::pin(begins)).await?;
    let waits = bench.requests_while("the update waits", Box::pin(pause(WAITS))).await?;
    let free = name(nodes as usize / 2);
    let (began, mut time) = (Instant::now(), Duration::ZERO);
    let freed = async {
        pods.delete(&free, &DeleteParams::default().grace_period(0)).await?;
        let gpu_nodes = Api::<GpuNode>::all(cluster.client());
        let updated = timeout(FREED_WITHIN, Box::pin(await_condition(gpu_nodes, &free, is_updated))).await;
        updated.context("the free node is not updated")??;
        time = began.elapsed();
        bench.quiet().await.map(drop)
    };
    let freed = bench.requests_while("a pod ends, and its node is updated", Box::pin(freed)).await?;
    for index in (0..nodes as usize).filter(|index| *index != nodes as usize / 2).take(10) {
        let node = Api::<GpuNode>::all(cluster.client()).get(&name(index)).await?;
        ensure!(!is_updated(Some(&node)), "{} has the other driver under a GPU pod", name(index));
    }
    let mut column = Column::of_fleet(nodes);
    column
        .count("reads in the first two minutes", reads(&begins))
        .at_most(60)
        .measure("writes in the first two minutes, per node", requests(&begins.writes()) / f64::from(nodes))
        .count("reads in the eight minutes after that", reads(&waits))
        .at_most(135)
        .count("writes in the eight minutes", requests(&waits.writes()))
        .at_most(0)
        .count("reads from the end of a pod until its node is updated", reads(&freed))
        .count("writes in that time", requests(&freed.writes()))
        .measure("that time, s", time.as_secs_f64())
        .list("in the first two minutes", begins);
    Ok(column)
}

fn is_updated(node: Option<&GpuNode>) -> bool {
    let report = node.and_then(|node| node.status.as_ref()?.report.as_ref());
    report.is_some_and(|report| report.driver.loaded.as_deref() == Some(DRIVER))
        && node.is_some_and(|node| node.spec.rollout.is_none())
}

/// Returns a pod that uses a GPU of a node, and has its name.
fn pod(node: &str) -> Result<Pod> {
    let container = json!({"name": "training", "image": "training", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let pod = json!({"metadata": {"name": node}, "spec": {"nodeName": node, "containers": [container]}});
    Ok(serde_json::from_value(pod)?)
}
