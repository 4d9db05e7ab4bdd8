//! Measures the operator while it updates the driver of a settled fleet, a tenth of the nodes at a time.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use cluster_client::{audit::Requests, handle::Cluster};
use gpu_operator_crd::GpuNode;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::json;
use tokio::time::Instant;

use super::{
    measure::Bench,
    row::{Row, requests},
    table,
};

/// A version that all models of the fleet support, and that is no model's default.
pub(super) const DRIVER: &str = "580.105.08";

/// The figures of one fleet.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub nodes: u32,
    /// How many nodes are updated at a time.
    at_a_time: u32,
    /// The operator's requests from the change of the policy until quiet.
    requests: Requests,
    /// The duration of that phase.
    time: Duration,
}

const ROWS: [Row<Figures>; 7] = [
    Row::count("nodes that are updated at a time", |of| f64::from(of.at_a_time)),
    Row::count("writes from the change of the driver until quiet", |of| requests(&of.requests.writes())),
    Row::measure("the same, per node, without those of the policy", |of| {
        let of_nodes = of.requests.writes().only(|request| !request.resource.starts_with("clustergpupolicies"));
        requests(&of_nodes) / f64::from(of.nodes)
    }),
    Row::count("writes of the policy's status and its ledger", |of| {
        requests(&of.requests.writes().only(|request| request.resource == "clustergpupolicies/status"))
    }),
    Row::measure("reads, per node", |of| {
        requests(&of.requests.only(|request| !request.is_write())) / f64::from(of.nodes)
    }),
    Row::measure("rejected requests, per node", |of| requests(&of.requests.rejected()) / f64::from(of.nodes)),
    Row::measure("time until quiet, s", |of| of.time.as_secs_f64()),
];

/// Returns all figures, and the operator's requests by kind.
pub(super) fn tables(all: &[Figures]) -> String {
    let fleets: Vec<_> = all.iter().map(|of| (table::nodes(of.nodes), of)).collect();
    let requests: Vec<_> = all.iter().map(|of| (table::nodes(of.nodes), &of.requests)).collect();
    format!(
        "{}\n{}",
        table::figures(&ROWS, &fleets),
        table::kinds("while the driver is updated, until quiet", &requests)
    )
}

/// Describes what the figures depend on.
pub(super) fn circumstances() -> String {
    "a tenth of the nodes is updated at a time, and no pod uses a GPU".to_owned()
}

/// Measures a fleet of `nodes` nodes in a cluster without nodes.
pub(super) async fn measure(cluster: &Cluster, operator: &Path, nodes: u32) -> Result<Figures> {
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
    let requests = bench.requests_while("the driver is updated, until quiet", Box::pin(phase)).await?;
    for node in Api::<GpuNode>::all(cluster.client()).list(&ListParams::default()).await? {
        let name = node.name_any();
        let report = node.status.and_then(|status| status.report).context("no report")?;
        let loaded = report.driver.loaded.as_deref();
        ensure!(loaded == Some(DRIVER) && node.spec.rollout.is_none(), "{name} has driver {loaded:?}");
    }
    Ok(Figures { nodes, at_a_time, requests, time })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster_client::audit::Request;

    #[test]
    fn writes_of_the_policy_are_counted_apart() {
        let request = |verb: &str, resource: &str, code| Request {
            verb: verb.into(),
            resource: resource.into(),
            name: "n".into(),
            code,
        };
        let mut sent = vec![request("patch", "gpunodes", 200); 300];
        sent.extend(vec![request("patch", "clustergpupolicies/status", 200); 20]);
        sent.extend(vec![request("list", "pods", 200); 50]);
        let figures = Figures { nodes: 100, at_a_time: 10, requests: Requests(sent), time: Duration::from_mins(1) };
        let text = tables(&[figures]);
        for line in [
            "| writes from the change of the driver until quiet | 320 |",
            "| the same, per node, without those of the policy | 3.0 |",
            "| writes of the policy's status and its ledger | 20 |",
            "| reads, per node | 0.5 |",
            "| `list pods` | 50 |",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
