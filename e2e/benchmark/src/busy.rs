//! Measures the operator while an update of the driver waits for GPU pods on all nodes of a settled fleet, and when one of them ends.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use cluster_client::{audit::Requests, handle::Cluster};
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
    measure::{Bench, name},
    phase::pause,
    row::{Row, requests},
    table,
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

/// The figures of one fleet.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub nodes: u32,
    /// The operator's requests from the change of the policy on.
    begins: Requests,
    /// Its requests after that.
    waits: Requests,
    /// Its requests from the end of a pod until its node has the other driver.
    freed: Requests,
    /// The duration of that phase.
    time: Duration,
}

fn reads(of: &Requests) -> f64 {
    requests(&of.only(|request| !request.is_write()))
}

const ROWS: [Row<Figures>; 6] = [
    Row::count("reads in the first two minutes", |of: &Figures| reads(&of.begins)).at_most(|_| 60.0),
    Row::measure("writes in the first two minutes, per node", |of| requests(&of.begins.writes()) / f64::from(of.nodes)),
    Row::count("requests in the eight minutes after that", |of: &Figures| requests(&of.waits)).at_most(|_| 0.0),
    Row::count("reads from the end of a pod until its node is updated", |of| reads(&of.freed)),
    Row::count("writes in that time", |of| requests(&of.freed.writes())),
    Row::measure("that time, s", |of| of.time.as_secs_f64()),
];

/// Returns all figures, and the operator's requests by kind.
pub(super) fn tables(all: &[Figures]) -> String {
    let fleets: Vec<_> = all.iter().map(|of| (table::nodes(of.nodes), of)).collect();
    let requests: Vec<_> = all.iter().map(|of| (table::nodes(of.nodes), &of.begins)).collect();
    format!("{}\n{}", table::figures(&ROWS, &fleets), table::kinds("in the first two minutes", &requests))
}

/// Returns the figures that are above their limits.
pub(super) fn exceeded(figures: &Figures) -> Vec<String> {
    ROWS.iter().filter_map(|row| row.exceeded(figures)).collect()
}

/// Measures a fleet of `nodes` nodes in a cluster without nodes.
pub(super) async fn measure(cluster: &Cluster, operator: &Path, nodes: u32) -> Result<Figures> {
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
    Ok(Figures { nodes, begins, waits, freed, time })
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

#[cfg(test)]
mod tests {
    use cluster_client::audit::Request;

    use super::*;

    #[test]
    fn requests_beyond_the_limits_are_reported() {
        let sent = |verb: &str, count| {
            let request = Request { verb: verb.into(), resource: "pods".into(), name: "n".into(), code: 200 };
            Requests(vec![request; count])
        };
        let good = Figures { nodes: 10, begins: sent("list", 60), ..Figures::default() };
        assert!(exceeded(&good).is_empty());
        let bad = Figures { begins: sent("list", 61), waits: sent("get", 1), ..good };
        let lines = exceeded(&bad);
        assert!(lines.len() == 2 && lines[0].ends_with("61 (limit 60)"), "{lines:?}");
        assert!(tables(&[bad]).contains("| `list pods` | 61 |"));
    }
}
