//! Measures the operator while it updates the driver of a settled fleet, a tenth of the nodes at a time.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use cluster_client::handle::Cluster;
use gpu_operator_crd::GpuNode;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::json;
use tokio::time::Instant;

use super::{
    fleets::Bench,
    table::{Column, reads, requests},
};

/// A version that all models of the fleet support, and that is no model's default.
pub(super) const DRIVER: &str = "580.105.08";

/// Measures a fleet of `nodes` nodes in a cluster without nodes.
pub(super) async fn measure(cluster: &Cluster, operator: &Path, nodes: u32) -> Result<Column> {
    let (bench, _) = Box::pin(Bench::installed(cluster, operator, nodes)).await?;
    let at_a_time = (nodes / 10).clamp(1, 100);
    let spec = json!({
        "defaults": {"driver": {"version": DRIVER}},
        "rollout": {"maxParallel": at_a_time, "maxUnavailable": "100%"},
    });
    let began = Instant::now();
    let mut time = Duration::ZERO;
    let phase = async {
        bench.apply(spec).await?;
        time = bench.quiet().await?.duration_since(began);
        Ok(())
    };
    let sent = bench.requests_while("the driver is updated, until quiet", Box::pin(phase)).await?;
    for node in Api::<GpuNode>::all(cluster.client()).list(&ListParams::default()).await? {
        let name = node.name_any();
        let report = node.status.and_then(|status| status.report).context("no report")?;
        let loaded = report.driver.loaded.as_deref();
        ensure!(loaded == Some(DRIVER) && node.spec.rollout.is_none(), "{name} has driver {loaded:?}");
    }
    let per_node = |count: f64| count / f64::from(nodes);
    let of = |test: fn(&str) -> bool| requests(&sent.writes().only(|request| test(&request.resource)));
    let mut column = Column::of_fleet(nodes);
    column
        .count("nodes that are updated at a time", at_a_time)
        .count("writes from the change of the driver until quiet", requests(&sent.writes()))
        .measure(
            "the same, per node, without those of the policy",
            per_node(of(|resource| !resource.starts_with("clustergpupolicies"))),
        )
        .count("writes of the policy's status and its ledger", of(|resource| resource == "clustergpupolicies/status"))
        .measure("reads, per node", per_node(reads(&sent)))
        .measure("rejected requests, per node", per_node(requests(&sent.rejected())))
        .measure("time until quiet, s", time.as_secs_f64())
        .list("while the driver is updated, until quiet", sent);
    Ok(column)
}
