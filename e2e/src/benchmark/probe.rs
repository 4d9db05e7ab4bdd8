//! The probe itself: what it takes of a node at rest, and under floods of XIDs.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use gpu_operator_crd::{
    GpuNode,
    health::HealthState,
    report::{NvmlState, Report},
};
use kube::{Api, runtime::wait::await_condition};
use tokio::time::timeout;

use super::{
    host::{GPUS, Host},
    phase::{pause, step, tell},
    row::{Row, mib, requests},
    table,
};
use crate::{
    audit::{PROBE, Requests},
    cluster::Cluster,
    fleet::{Fleet, FleetNode},
    operator_process::Build,
    probe_process::{ProbeProcess, ProbeUsage},
};

const NODE: &str = "probed";
/// How long anything may take to begin.
const DEADLINE: Duration = Duration::from_mins(2);
/// How often the GPUs are read, by default.
const HEALTH_INTERVAL: Duration = Duration::from_secs(30);
/// What programs do wrong: it says nothing of a GPU.
const APPLICATION: [u16; 6] = [13, 31, 43, 45, 68, 109];
/// A warning: a memory row is to be replaced.
const WARNING: u16 = 63;
/// XIDs a second, of all GPUs.
const FLOOD: u32 = 1_000;
/// What the probe may take of memory beyond the library, in MiB.
const MEMORY_LIMIT: f64 = 16.0;

/// What was measured in one phase.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    what: String,
    time: Duration,
    /// Memory at the end of the phase; processor time of it.
    usage: ProbeUsage,
    /// Of the probe, but for its watch.
    requests: Requests,
    /// How many requests there may be at most.
    allowed: f64,
    /// XIDs that the report counts at the end, each GPU's rounded down.
    told: u64,
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
        u32::try_from(of.told).map_or(f64::INFINITY, f64::from)
    }),
];

/// A sentence for every figure that is above its limit.
pub(super) fn missed(all: &[Figures]) -> Vec<String> {
    all.iter().flat_map(|of| ROWS.iter().filter_map(|row| Some(format!("{}: {}", of.what, row.missed(of)?)))).collect()
}

/// A column for each phase.
pub(super) fn tables(all: &[Figures]) -> String {
    let phases: Vec<_> = all.iter().map(|of| (format!("{}, {} s", of.what, of.time.as_secs()), of)).collect();
    table::figures(&ROWS, &phases)
}

/// What the figures depend on.
pub(super) fn circumstances() -> String {
    format!(
        "a node of {GPUS} GPUs, looked at every 10 s, of which the GPUs are read every {} s",
        HEALTH_INTERVAL.as_secs()
    )
}

/// Measures a probe in a cluster that has no operator: at rest for so long, and half of that under each flood.
pub(super) async fn measure(cluster: &Cluster, rest: Duration) -> Result<Vec<Figures>> {
    let (_fleet, pod) = node(cluster).await?;
    let library = Build::Release.file(cluster.paths(), "libstandin_nvml.so");
    let host = Host::new(&cluster.paths().cluster().join("probe-host"), &library)?;
    let bench = Bench { cluster, probe: ProbeProcess::start(cluster, NODE, &pod, host.root())? };
    step("the probe reports", String::new, bench.reported()).await?;

    let at_rest = bench.phase("at rest", rest, 0.0).await?;
    host.flood(&APPLICATION, FLOOD)?;
    let what = format!("{FLOOD} a second of programs' XIDs");
    let of_programs = bench.phase(&what, rest / 2, 0.0).await?;
    host.flood(&[WARNING], FLOOD)?;
    // Counts are news when they have grown to the next step, and are looked at with the readings.
    let readings = (rest / 2).as_secs_f64() / HEALTH_INTERVAL.as_secs_f64();
    let what = format!("{FLOOD} a second of XID {WARNING}");
    let warnings = bench.phase(&what, rest / 2, readings.ceil() + 1.0).await?;
    Ok(vec![at_rest, of_programs, warnings])
}

/// A simulated node, and the pod of the chart's DaemonSet that is placed there. The probe that is measured speaks for it.
async fn node(cluster: &Cluster) -> Result<(Fleet, String)> {
    let fleet = Fleet::start(cluster).await?;
    let mut node = FleetNode::with_gpus(NODE, "2330", GPUS as usize);
    node.behaviour.reports = false;
    fleet.join([node]).await?;
    let is_probe = |pod: &&String| pod.starts_with("nvml-probe-");
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
    /// Until all GPUs are reported as well.
    async fn reported(&self) -> Result<()> {
        let is_whole = |node: Option<&GpuNode>| node.and_then(report).is_some_and(all_well);
        let Ok(waited) = timeout(DEADLINE, Box::pin(await_condition(self.nodes(), NODE, is_whole))).await else {
            let found = self.nodes().get_opt(NODE).await?;
            let found = found.as_ref().and_then(report);
            bail!(
                "no report of {GPUS} GPUs that are well in {} s, but {found:?}; {}",
                DEADLINE.as_secs(),
                self.probe.said()
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
        let again = "the NVML process was started anew meanwhile, so that its figures mean nothing";
        ensure!(after.child_id == before.child_id, "{what}: {again}; {}", self.probe.said());
        let requests = self.cluster.audit().requests(PROBE, mark)?.without_watches();
        tell(&requests);
        let node = self.nodes().get(NODE).await?;
        let told = report(&node).map_or(0, told);
        let usage =
            ProbeUsage { probe: after.probe.since(before.probe), child: after.child.since(before.child), ..after };
        Ok(Figures { what: what.to_owned(), time, usage, requests, allowed, told })
    }

    fn nodes(&self) -> Api<GpuNode> {
        Api::all(self.cluster.client())
    }
}

fn report(node: &GpuNode) -> Option<&Report> {
    node.status.as_ref()?.report.as_ref()
}

fn all_well(report: &Report) -> bool {
    report.nvml.state == NvmlState::Answering
        && report.gpus.len() == GPUS as usize
        && report.gpus.iter().all(|gpu| gpu.health.state == HealthState::Healthy)
}

fn told(report: &Report) -> u64 {
    let causes = report.gpus.iter().flat_map(|gpu| &gpu.health.causes);
    causes.filter(|cause| cause.xid.is_some()).filter_map(|cause| cause.count).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        audit::Request,
        usage::{Mapped, Usage},
    };

    fn figures() -> Figures {
        let usage =
            |peak: u64, cpu| Usage { resident: 7 << 20, peak_resident: peak << 20, cpu: Duration::from_millis(cpu) };
        let library = Mapped { size: 3 << 20, resident: 2 << 20 };
        let usage = ProbeUsage { probe: usage(8, 40), child: usage(9, 130), library, child_id: 1 };
        Figures { what: "at rest".to_owned(), time: Duration::from_mins(2), usage, ..Figures::default() }
    }

    #[test]
    fn memory_counts_beyond_the_library_and_any_request_is_too_many() {
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
        assert_eq!(missed(std::slice::from_ref(&figures)), [""; 0]);
        figures.usage.library.resident = 0;
        let write = Request { verb: "patch".into(), resource: "gpunodes/status".into(), name: NODE.into(), code: 200 };
        figures.requests = Requests(vec![write]);
        assert_eq!(
            missed(&[figures]),
            [
                "at rest: both at their peak, beyond the library, MiB: 17.0, and not at most 16.0",
                "at rest: requests to the API server, but for the watch: 1, and not at most 0",
            ]
        );
    }

    #[test]
    fn a_report_is_whole_with_all_gpus_and_tells_of_xids() {
        let cause = json!({
            "kind": "Xid", "severity": "Warning", "xid": 63, "count": 5000, "since": "2026-01-01T00:00:00Z",
        });
        let report = |count: u32, health: serde_json::Value| -> Report {
            let gpus = vec![json!({"health": health}); count as usize];
            serde_json::from_value(json!({"gpus": gpus, "nvml": {"state": "Answering"}})).unwrap()
        };
        assert!(all_well(&report(GPUS, json!({"state": "Healthy"}))));
        assert!(!all_well(&report(GPUS - 1, json!({"state": "Healthy"}))));
        let degraded = report(GPUS, json!({"state": "Degraded", "causes": [cause]}));
        assert!(!all_well(&degraded));
        assert_eq!((told(&degraded), told(&report(GPUS, json!({})))), (40_000, 0));
    }
}
