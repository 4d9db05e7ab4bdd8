//! Measures the operator while the health of GPUs changes, on a settled fleet.

use std::{
    collections::VecDeque,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use cluster::clients::ADMIN;
use cluster_client::handle::Cluster;
use futures::StreamExt;
use gpu_operator_crd::{ClusterGpuPolicy, GpuHealth};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api,
    runtime::{WatchStreamExt, watcher::watch_object},
};
use serde_json::json;
use tokio::time::{Instant, interval};

use super::{
    fleets::{Bench, GPUS_PER_NODE, POLICY, gpus, name},
    table::{Column, float, memory_limit, mib, reads, requests},
};

/// The limit of the policy's status in bytes. It does not depend on the number of unhealthy nodes: the status lists ten
/// of them, conditions and pools, each with a few hundred bytes.
const STATUS_LIMIT: u32 = 16_384;

/// The rate and the duration of changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Changes per second.
    pub rate: u32,
    /// The duration of the changes.
    pub time: Duration,
}

/// Measures a fleet of `nodes` nodes in a cluster without nodes.
pub(super) async fn measure(cluster: &Cluster, operator: &Path, nodes: u32, load: Load) -> Result<Column> {
    let (bench, _) = Box::pin(Bench::installed(cluster, operator, nodes)).await?;
    let before = bench.operator.usage()?;
    let mark = cluster.audit().mark()?;
    let largest = AtomicUsize::new(0);
    let (mut unhealthy, mut time) = (0, Duration::ZERO);
    let phase = async {
        tokio::select! {
            () = follow_size(bench.policies(), &largest) => bail!("the watch of the policy ended"),
            outcome = change(&bench, load, nodes as usize) => (unhealthy, time) = outcome?,
        }
        Ok(())
    };
    let sent = bench.requests_while("the health of GPUs changes, until quiet", Box::pin(phase)).await?;
    let usage = bench.operator.usage()?.since(before);
    let written = cluster.audit().requests(ADMIN, mark)?;
    let changes =
        written.only(|request| request.resource == "gpunodes/status" && request.is_write() && !request.is_rejected());
    ensure!(changes.count() > 0, "no report was written: the fleet's agent does not report changes of health");

    let (changes, writes) = (requests(&changes), requests(&sent.writes()));
    let of_policy = requests(&sent.only(|request| request.resource == "clustergpupolicies/status"));
    let mut column = Column::of_fleet(nodes);
    column
        .count("reports with a change of a GPU's health", changes)
        .count("peak number of nodes with a GPU that is not healthy", float(unhealthy))
        .count("the operator's writes", writes)
        .measure("the same, per report", writes / changes)
        .count("reads", reads(&sent))
        .count("writes of the policy's status", of_policy)
        .at_most(time.as_secs_f64().ceil() + 1.0)
        .count("rejected requests", requests(&sent.rejected()))
        .at_most(0)
        .measure("processor time per 1,000 reports, s", usage.cpu.as_secs_f64() * 1_000.0 / changes)
        .measure("resident memory before, MiB", mib(before.resident))
        .measure("peak resident memory, MiB", mib(usage.peak_resident))
        .at_most(memory_limit(nodes, gpus(nodes)))
        .count("the policy's status at its largest, bytes", float(largest.into_inner()))
        .at_most(STATUS_LIMIT)
        .list("while health changes, until quiet", sent);
    Ok(column)
}

/// Changes the health of GPUs at the load's rate: by turns a healthy GPU gets a fault, and the GPU that has been unhealthy for the longest time
/// takes a step of its recovery. Waits until the fleet is quiet. Returns the peak number of unhealthy GPUs, each on a node of its own as
/// long as there are as many nodes, and the duration.
async fn change(bench: &Bench<'_>, load: Load, nodes: usize) -> Result<(usize, Duration)> {
    let mut unhealthy = VecDeque::new();
    let (mut faults, mut peak) = (0, 0);
    let began = Instant::now();
    let mut ticks = interval(Duration::from_secs(1) / load.rate);
    let mut recovers = false;
    while began.elapsed() < load.time {
        ticks.tick().await;
        let next = if recovers { unhealthy.pop_front() } else { None };
        let ((node, gpu), health) = match next {
            Some((gpu, true)) => (gpu, None),
            Some((gpu, false)) => {
                unhealthy.push_back((gpu, true));
                (gpu, Some(degraded(true)?))
            }
            None => {
                let gpu = (faults % nodes, faults / nodes % GPUS_PER_NODE);
                faults += 1;
                unhealthy.push_back((gpu, false));
                (gpu, Some(degraded(false)?))
            }
        };
        recovers = !recovers;
        peak = peak.max(unhealthy.len());
        bench.fleet.change(&name(node), |node| match health {
            Some(health) => drop(node.health.insert(gpu, health)),
            None => drop(node.health.remove(&gpu)),
        });
    }
    Ok((peak.min(nodes), bench.quiet().await?.duration_since(began)))
}

/// Returns the health of a GPU with a memory row to remap.
fn degraded(recovering: bool) -> Result<GpuHealth> {
    // The API stores times in seconds.
    let since = Timestamp::from_second(Timestamp::now().as_second())?;
    let (state, action) = if recovering { ("Recovering", "None") } else { ("Degraded", "DrainAndReset") };
    let cause = json!({
        "kind": "RowRemapPending", "severity": "Warning", "evidence": "a row to remap", "since": since, "recovering": recovering,
    });
    Ok(serde_json::from_value(json!({"state": state, "action": action, "since": since, "causes": [cause]}))?)
}

/// Records the maximum size of the policy's status; restarts the watch after errors.
async fn follow_size(policies: Api<ClusterGpuPolicy>, largest: &AtomicUsize) {
    let mut policies = std::pin::pin!(watch_object(policies, POLICY).default_backoff());
    while let Some(policy) = policies.next().await {
        let Ok(Some(ClusterGpuPolicy { status: Some(status), .. })) = policy else { continue };
        let size = serde_json::to_string(&status).map_or(0, |text| text.len());
        largest.fetch_max(size, Ordering::Relaxed);
    }
}
