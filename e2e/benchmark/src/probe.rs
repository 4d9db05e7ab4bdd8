//! Measures the probe on one node: idle, and under floods of XIDs.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cluster::users::PROBE;
use cluster_client::{
    audit::Requests,
    handle::Cluster,
    probe_process::{ProbeProcess, ProbeUsage},
};
use fleet::{Fleet, FleetNode};
use gpu_operator_crd::{
    GpuNode,
    health::HealthState,
    keys,
    report::{NvmlState, Report},
};
use harness::cargo::Build;
use kube::{Api, runtime::wait::await_condition};
use tokio::time::timeout;

use super::{
    fake_host::{FakeHost, GPUS},
    phase::{pause, print_requests, step},
    row::{Row, mib, requests},
    table,
};

const NODE: &str = "probed";
/// The time limit for the start of the pod and of the probe.
const DEADLINE: Duration = Duration::from_mins(2);
/// The default interval at which the probe reads GPUs.
const HEALTH_INTERVAL: Duration = Duration::from_secs(30);
/// XIDs that are caused by faulty programs and not by the GPU.
const APPLICATION_XIDS: [u16; 6] = [13, 31, 43, 45, 68, 109];
/// An XID that is a warning: a memory row must be remapped.
const WARNING_XID: u16 = 63;
/// XIDs per second, of all GPUs together.
const FLOOD_RATE: u32 = 1_000;
/// The limit of the probe's memory without the library, in MiB.
const MEMORY_LIMIT: f64 = 16.0;

/// The figures of one phase.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    what: String,
    time: Duration,
    /// Memory at the end of the phase, and processor time during it.
    usage: ProbeUsage,
    /// The probe's requests, without its watch.
    requests: Requests,
    /// The maximum allowed number of requests.
    allowed: f64,
    /// The number of XIDs in the report at the end, rounded down for each GPU.
    counted_xids: u64,
}

const ROWS: [Row<Figures>; 11] = [
    Row::measure("resident memory of the probe, MiB", |of| mib(of.usage.probe.resident)),
    Row::measure("peak of the probe so far, MiB", |of| mib(of.usage.probe.peak_resident)),
    Row::measure("resident memory of its NVML process, MiB", |of| mib(of.usage.child.resident)),
    Row::measure("peak of its NVML process so far, MiB", |of| mib(of.usage.child.peak_resident)),
    Row::measure("of which is the library, MiB", |of| mib(of.usage.library.resident)),
    Row::measure("the library as it is mapped, MiB", |of| mib(of.usage.library.size)),
    Row::measure("both at their peak, beyond the library, MiB", |of: &Figures| {
        let both = of.usage.probe.peak_resident + of.usage.child.peak_resident;
        mib(both.saturating_sub(of.usage.library.resident))
    })
    .at_most(|_| MEMORY_LIMIT),
    Row::count("processor time of the probe, ms", |of| of.usage.probe.cpu.as_secs_f64() * 1_000.0),
    Row::count("processor time of its NVML process, ms", |of| of.usage.child.cpu.as_secs_f64() * 1_000.0),
    Row::count("requests to the API server, but for the watch", |of: &Figures| requests(&of.requests))
        .at_most(|of| of.allowed),
    Row::count("XIDs that the report counts, rounded down", |of| {
        u32::try_from(of.counted_xids).map_or(f64::INFINITY, f64::from)
    }),
];

/// Returns a message for every figure above its limit.
pub(super) fn exceeded(all: &[Figures]) -> Vec<String> {
    let exceeded = |of: &Figures| -> Vec<String> {
        ROWS.iter().filter_map(|row| Some(format!("{}: {}", of.what, row.exceeded(of)?))).collect()
    };
    all.iter().flat_map(exceeded).collect()
}

/// Returns a table with a column for each phase.
pub(super) fn tables(all: &[Figures]) -> String {
    let phases: Vec<_> = all.iter().map(|of| (format!("{}, {} s", of.what, of.time.as_secs()), of)).collect();
    table::figures(&ROWS, &phases)
}

/// Describes what the figures depend on.
pub(super) fn circumstances() -> String {
    format!(
        "a node of {GPUS} GPUs, looked at every 10 s, of which the GPUs are read every {} s",
        HEALTH_INTERVAL.as_secs()
    )
}

/// Measures a probe in a cluster without an operator: idle for `idle`, and under each flood for half of that.
pub(super) async fn measure(cluster: &Cluster, idle: Duration) -> Result<Vec<Figures>> {
    let (_fleet, pod) = node(cluster).await?;
    let library = Build::Release.file(cluster.paths(), "libstandin_nvml.so");
    let host = FakeHost::new(&cluster.paths().cluster().join("probe-host"), &library)?;
    let bench = Bench { cluster, probe: ProbeProcess::start(cluster, NODE, &pod, host.root())? };
    step("the probe reports", String::new, bench.reported()).await?;

    let at_rest = bench.phase("at rest", idle, 0.0).await?;
    host.flood(&APPLICATION_XIDS, FLOOD_RATE)?;
    let what = format!("{FLOOD_RATE} a second of programs' XIDs");
    let of_programs = bench.phase(&what, idle / 2, 0.0).await?;
    host.flood(&[WARNING_XID], FLOOD_RATE)?;
    // Counts are reported in coarse steps, and only when the GPUs are read.
    let readings = (idle / 2).as_secs_f64() / HEALTH_INTERVAL.as_secs_f64();
    let what = format!("{FLOOD_RATE} a second of XID {WARNING_XID}");
    let warnings = bench.phase(&what, idle / 2, readings.ceil() + 1.0).await?;
    Ok(vec![at_rest, of_programs, warnings])
}

/// Creates a simulated node, and returns the pod of the chart's DaemonSet on it, whose rights the measured probe uses.
async fn node(cluster: &Cluster) -> Result<(Fleet, String)> {
    let fleet = Fleet::start(cluster).await?;
    let mut node = FleetNode::with_gpus(NODE, "2330", GPUS as usize);
    node.behaviour.reports = false;
    // There is no operator that would label it.
    node.labels.insert(keys::PRESENT.into(), "true".into());
    fleet.join([node]).await?;
    let is_probe = |pod: &&String| pod.starts_with("nodestack-nvml-probe-");
    fleet
        .until("a pod of the probe's DaemonSet", DEADLINE, |_, node| node.pods.iter().any(|pod| is_probe(&pod)))
        .await?;
    let pods = fleet.observe(NODE).context("the node is gone")?.pods;
    let pod = pods.iter().find(is_probe).context("the probe's pod is gone")?.clone();
    Ok((fleet, pod))
}

struct Bench<'a> {
    cluster: &'a Cluster,
    probe: ProbeProcess,
}

impl Bench<'_> {
    /// Waits until all GPUs are reported as healthy.
    async fn reported(&self) -> Result<()> {
        let is_complete = |node: Option<&GpuNode>| node.and_then(report).is_some_and(all_healthy);
        let Ok(waited) = timeout(DEADLINE, Box::pin(await_condition(self.nodes(), NODE, is_complete))).await else {
            let found = self.nodes().get_opt(NODE).await?;
            let found = found.as_ref().and_then(report);
            bail!(
                "no report of {GPUS} healthy GPUs within {} s; last report: {found:?}; {}",
                DEADLINE.as_secs(),
                self.probe.log_tail()
            );
        };
        waited?;
        Ok(())
    }

    async fn phase(&self, what: &str, time: Duration, allowed: f64) -> Result<Figures> {
        let mark = self.cluster.audit().mark()?;
        let before = self.probe.usage()?;
        step(what, String::new, pause(time)).await?;
        let after = self.probe.usage()?;
        let restarted = "the NVML process was restarted during the phase, so its figures are meaningless";
        ensure!(after.child_id == before.child_id, "{what}: {restarted}; {}", self.probe.log_tail());
        let requests = self.cluster.audit().requests(PROBE, mark)?.without_watches();
        print_requests(&requests);
        let node = self.nodes().get(NODE).await?;
        let counted_xids = report(&node).map_or(0, counted_xids);
        let usage =
            ProbeUsage { probe: after.probe.since(before.probe), child: after.child.since(before.child), ..after };
        Ok(Figures { what: what.to_owned(), time, usage, requests, allowed, counted_xids })
    }

    fn nodes(&self) -> Api<GpuNode> {
        Api::all(self.cluster.client())
    }
}

fn report(node: &GpuNode) -> Option<&Report> {
    node.status.as_ref()?.report.as_ref()
}

fn all_healthy(report: &Report) -> bool {
    report.nvml.state == NvmlState::Answering
        && report.gpus.len() == GPUS as usize
        && report.gpus.iter().all(|gpu| gpu.health.state == HealthState::Healthy)
}

fn counted_xids(report: &Report) -> u64 {
    let causes = report.gpus.iter().flat_map(|gpu| &gpu.health.causes);
    causes.filter(|cause| cause.xid.is_some()).filter_map(|cause| cause.count).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use cluster_client::audit::Request;
    use harness::usage::{MappedMemory, Usage};

    fn figures() -> Figures {
        let usage =
            |peak: u64, cpu| Usage { resident: 7 << 20, peak_resident: peak << 20, cpu: Duration::from_millis(cpu) };
        let library = MappedMemory { size: 3 << 20, resident: 2 << 20 };
        let usage = ProbeUsage { probe: usage(8, 40), child: usage(9, 130), library, child_id: 1 };
        Figures { what: "at rest".to_owned(), time: Duration::from_mins(2), usage, ..Figures::default() }
    }

    #[test]
    fn memory_counts_without_the_library_and_no_request_is_allowed() {
        let text = tables(&[figures()]);
        for line in [
            "|  | at rest, 120 s |",
            "| both at their peak, beyond the library, MiB | 15.0 (at most 16.0) |",
            "| processor time of its NVML process, ms | 130 |",
            "| requests to the API server, but for the watch | 0 (at most 0) |",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        let mut figures = figures();
        assert_eq!(exceeded(std::slice::from_ref(&figures)), [""; 0]);
        figures.usage.library.resident = 0;
        let write = Request { verb: "patch".into(), resource: "gpunodes/status".into(), name: NODE.into(), code: 200 };
        figures.requests = Requests(vec![write]);
        assert_eq!(
            exceeded(&[figures]),
            [
                "at rest: both at their peak, beyond the library, MiB: 17.0 (limit 16.0)",
                "at rest: requests to the API server, but for the watch: 1 (limit 0)",
            ]
        );
    }

    #[test]
    fn a_report_is_complete_with_all_healthy_gpus_and_counts_xids() {
        let cause = json!({
            "kind": "Xid", "severity": "Warning", "xid": 63, "count": 5000, "since": "2026-01-01T00:00:00Z",
        });
        let report = |count: u32, health: serde_json::Value| -> Report {
            let gpus = vec![json!({"health": health}); count as usize];
            serde_json::from_value(json!({"gpus": gpus, "nvml": {"state": "Answering"}})).unwrap()
        };
        assert!(all_healthy(&report(GPUS, json!({"state": "Healthy"}))));
        assert!(!all_healthy(&report(GPUS - 1, json!({"state": "Healthy"}))));
        let degraded = report(GPUS, json!({"state": "Degraded", "causes": [cause]}));
        assert!(!all_healthy(&degraded));
        assert_eq!((counted_xids(&degraded), counted_xids(&report(GPUS, json!({})))), (40_000, 0));
    }
}
