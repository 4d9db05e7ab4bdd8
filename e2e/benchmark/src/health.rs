//! Measures the operator while the health of GPUs changes, on a settled fleet.

use std::{
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use cluster::users::ADMIN;
use cluster_client::{audit::Requests, handle::Cluster};
use futures::StreamExt;
use gpu_operator_crd::ClusterGpuPolicy;
use harness::usage::Usage;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api,
    runtime::{WatchStreamExt, watcher::watch_object},
};
use tokio::time::{Instant, interval};

use super::{
    measure::{Bench, GPUS_PER_NODE, POLICY, name},
    random_faults::RandomFaults,
    row::{Row, float, memory_limit, mib, requests},
    table,
};

/// The seed of the random faults.
const SEED: u64 = 79;
/// The limit of the policy's status in bytes. It does not depend on the number of unhealthy nodes: the status lists ten
/// of them, conditions and pools, each with a few hundred bytes.
const STATUS_LIMIT: f64 = 16_384.0;

/// The rate and the duration of changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Changes per second.
    pub rate: u32,
    /// The duration of the changes.
    pub time: Duration,
}

/// The figures of one fleet.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub nodes: u32,
    gpus: u32,
    /// The number of written reports with a change of a GPU's health.
    changes: usize,
    /// The peak number of nodes with a GPU that is not healthy.
    unhealthy_nodes: usize,
    /// The operator's requests from the first change until quiet.
    requests: Requests,
    /// The duration of that phase.
    time: Duration,
    /// Memory at the end of the phase, and processor time during it.
    usage: Usage,
    /// Memory before the phase, in bytes.
    resident_before: u64,
    /// The maximum size of the policy's status, in bytes of JSON.
    largest_status: usize,
}

const ROWS: [Row<Figures>; 11] = [
    Row::count("reports with a change of a GPU's health", |of| float(of.changes)),
    Row::count("peak number of nodes with a GPU that is not healthy", |of| float(of.unhealthy_nodes)),
    Row::count("the operator's writes", |of| requests(&of.requests.writes())),
    Row::measure("the same, per report", |of| requests(&of.requests.writes()) / float(of.changes)),
    Row::count("reads", |of| requests(&of.requests.only(|request| !request.is_write()))),
    Row::count("writes of the policy's status", |of: &Figures| {
        requests(&of.requests.only(|request| request.resource == "clustergpupolicies/status"))
    })
    .at_most(|of| of.time.as_secs_f64().ceil() + 1.0),
    Row::count("rejected requests", |of: &Figures| requests(&of.requests.rejected())).at_most(|_| 0.0),
    Row::measure("processor time per 1,000 reports, s", |of| of.usage.cpu.as_secs_f64() * 1_000.0 / float(of.changes)),
    Row::measure("resident memory before, MiB", |of| mib(of.resident_before)),
    Row::measure("peak resident memory, MiB", |of: &Figures| mib(of.usage.peak_resident))
        .at_most(|of| memory_limit(of.nodes, of.gpus)),
    Row::count("the policy's status at its largest, bytes", |of: &Figures| float(of.largest_status))
        .at_most(|_| STATUS_LIMIT),
];

/// Returns a message for every figure above its limit.
pub(super) fn exceeded(of: &Figures) -> Vec<String> {
    ROWS.iter().filter_map(|row| row.exceeded(of)).collect()
}

/// Returns all figures, and the operator's requests by kind.
pub(super) fn tables(all: &[Figures]) -> String {
    let fleets: Vec<_> = all.iter().map(|of| (table::nodes(of.nodes), of)).collect();
    let requests: Vec<_> = all.iter().map(|of| (table::nodes(of.nodes), &of.requests)).collect();
    format!("{}\n{}", table::figures(&ROWS, &fleets), table::kinds("while health changes, until quiet", &requests))
}

/// Describes what the figures depend on.
pub(super) fn circumstances(load: Load) -> String {
    format!("{} changes a second for {} s, with seed {SEED}", load.rate, load.time.as_secs())
}

/// Measures a fleet of `nodes` nodes in a cluster without nodes.
pub(super) async fn measure(cluster: &Cluster, operator: &Path, nodes: u32, load: Load) -> Result<Figures> {
    let (bench, _) = Box::pin(Bench::installed(cluster, operator, nodes)).await?;
    let before = bench.operator.usage()?;
    let mark = cluster.audit().mark()?;
    let largest = AtomicUsize::new(0);
    let mut figures = Figures { nodes, gpus: nodes * u32::try_from(GPUS_PER_NODE)?, ..Figures::default() };
    let phase = async {
        tokio::select! {
            () = follow_size(bench.policies(), &largest) => bail!("the watch of the policy ended"),
            outcome = change(&bench, load, &mut figures) => outcome,
        }
    };
    let requests = bench.requests_while("the health of GPUs changes, until quiet", Box::pin(phase)).await?;
    let usage = bench.operator.usage()?;
    let written = cluster.audit().requests(ADMIN, mark)?;
    let changes =
        written.only(|request| request.resource == "gpunodes/status" && request.is_write() && !request.is_rejected());
    ensure!(changes.count() > 0, "no report was written: the fleet's agent does not report changes of health");
    Ok(Figures {
        changes: changes.count(),
        requests,
        usage: usage.since(before),
        resident_before: before.resident,
        largest_status: largest.into_inner(),
        ..figures
    })
}

/// Changes the health of GPUs at the load's rate, and waits until the fleet is quiet.
async fn change(bench: &Bench<'_>, load: Load, figures: &mut Figures) -> Result<()> {
    let mut faults = RandomFaults::new(figures.nodes as usize, GPUS_PER_NODE, SEED, Timestamp::now())?;
    let began = Instant::now();
    let mut ticks = interval(Duration::from_secs(1) / load.rate);
    while began.elapsed() < load.time {
        ticks.tick().await;
        // The API stores times in seconds.
        let now = Timestamp::from_second(Timestamp::now().as_second())?;
        let change = faults.next(now);
        bench.fleet.change(&name(change.node), |node| drop(node.health.insert(change.gpu, change.health)));
        figures.unhealthy_nodes = figures.unhealthy_nodes.max(faults.unhealthy_nodes());
    }
    figures.time = bench.quiet().await?.duration_since(began);
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use cluster_client::audit::Request;

    fn figures() -> Figures {
        let request =
            |resource: &str, code| Request { verb: "patch".into(), resource: resource.into(), name: "n".into(), code };
        let mut sent = vec![request("gpunodes/status", 200); 200];
        sent.extend(vec![request("nodes/status", 200); 90]);
        sent.extend(vec![request("clustergpupolicies/status", 200); 10]);
        Figures {
            nodes: 1_000,
            gpus: 8_000,
            changes: 200,
            unhealthy_nodes: 150,
            requests: Requests(sent),
            time: Duration::from_millis(9_200),
            usage: Usage { resident: 40 << 20, peak_resident: 41 << 20, cpu: Duration::from_millis(500) },
            resident_before: 39 << 20,
            largest_status: 6_000,
        }
    }

    #[test]
    fn the_cost_of_a_change_is_in_the_table_next_to_its_limits() {
        let text = tables(&[figures()]);
        for line in [
            "|  | 1,000 nodes |",
            "| the same, per report | 1.5 |",
            "| writes of the policy's status | 10 (at most 11) |",
            "| processor time per 1,000 reports, s | 2.5 |",
            "| the policy's status at its largest, bytes | 6,000 (at most 16,384) |",
            "| `patch nodes/status` | 90 |",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert_eq!(exceeded(&figures()), [""; 0]);
    }

    #[test]
    fn a_status_that_grows_with_unhealthy_nodes_exceeds_its_limit() {
        let mut figures = figures();
        figures.largest_status = 20_000;
        figures.requests.0[0].code = 409;
        assert_eq!(
            exceeded(&figures),
            ["rejected requests: 1 (limit 0)", "the policy's status at its largest, bytes: 20,000 (limit 16,384)",]
        );
    }
}
