//! Measures the probe on one node: idle, and under floods of XIDs.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use cluster::{
    clients::PROBE,
    standin::{Gpu, Standin},
};
use cluster_client::{handle::Cluster, probe_process::ProbeProcess};
use fleet::{Fleet, FleetNode};
use gpu_operator_crd::{
    GpuNode,
    health::HealthState,
    keys,
    report::{NvmlState, Report},
};
use harness::cargo::Build;
use kube::{Api, runtime::wait::await_condition};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    fleets::{pause, print_requests, step},
    table::{Column, mib, requests},
};

const NODE: &str = "probed";
const GPUS: u32 = 8;
const DRIVER: &str = "595.91.07";
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
const MEMORY_LIMIT: u32 = 16;
/// The readings of a busy and healthy GPU. All readings are present, so that the probe queries all of them.
const READINGS: &str = include_str!("readings.json");

/// Measures a probe in a cluster without an operator: idle for `idle`, and under each flood for half of that.
pub(super) async fn measure(cluster: &Cluster, idle: Duration) -> Result<Vec<Column>> {
    let (_fleet, pod) = node(cluster).await?;
    let library = Build::Release.file(cluster.paths(), "libstandin_nvml.so");
    let root = cluster.paths().cluster().join("probe-host");
    let standin = host(&root, &library)?;
    let flood = |xids: &[u16]| standin.set_gpus(&gpus(xids)?);
    let bench = Bench { cluster, probe: ProbeProcess::start(cluster, NODE, &pod, &root)? };
    step("the probe reports", String::new, bench.reported()).await?;

    let at_rest = bench.phase("at rest", idle, 0.0).await?;
    flood(&APPLICATION_XIDS)?;
    let what = format!("{FLOOD_RATE} a second of programs' XIDs");
    let of_programs = bench.phase(&what, idle / 2, 0.0).await?;
    flood(&[WARNING_XID])?;
    // Counts are reported in coarse steps, and only when the GPUs are read.
    let readings = (idle / 2).as_secs_f64() / HEALTH_INTERVAL.as_secs_f64();
    let what = format!("{FLOOD_RATE} a second of XID {WARNING_XID}");
    let warnings = bench.phase(&what, idle / 2, readings.ceil() + 1.0).await?;
    Ok(vec![at_rest, of_programs, warnings])
}

/// Creates a host in a folder: the files that the probe reads on a machine with a driver and busy, healthy GPUs, with `library` as its NVML.
fn host(root: &Path, library: &Path) -> Result<Standin> {
    let (libraries, standin) = (root.join("usr/lib/x86_64-linux-gnu"), root.join("etc/standin"));
    for folder in ["proc/sys/kernel/random", "sys/bus/pci", "dev"] {
        fs::create_dir_all(root.join(folder))?;
    }
    for folder in ["pci", "module", "lock"] {
        fs::create_dir_all(standin.join(folder))?;
    }
    fs::create_dir_all(&libraries)?;
    symlink("/etc/standin/pci", root.join("sys/bus/pci/devices"))?;
    symlink("/etc/standin/module", root.join("sys/module"))?;
    fs::write(root.join("proc/sys/kernel/random/boot_id"), "11111111-2222-3333-4444-555555555555\n")?;
    fs::write(root.join("etc/os-release"), "ID=ubuntu\nVERSION_ID=\"22.04\"\n")?;
    fs::write(root.join("dev/nvidiactl"), "")?;
    fs::copy(library, libraries.join(format!("libnvidia-ml.so.{DRIVER}")))
        .with_context(|| format!("copying {}", library.display()))?;
    let standin = Standin::new(standin);
    standin.set_module(Some(DRIVER))?;
    standin.plug(&gpus(&[])?)?;
    Ok(standin)
}

/// Returns GPUs that report these XIDs, each at the same rate.
fn gpus(xids: &[u16]) -> Result<Vec<Gpu>> {
    let readings: Value = serde_json::from_str(READINGS)?;
    let streams = GPUS * u32::try_from(xids.len())?;
    let entries: Vec<Value> = xids.iter().map(|xid| json!({"xid": xid, "perSecond": FLOOD_RATE / streams})).collect();
    let mut gpus = Gpu::h100(GPUS);
    for gpu in &mut gpus {
        gpu.state.insert("xids".to_owned(), entries.clone().into());
        gpu.state.insert("readings".to_owned(), readings.clone());
    }
    Ok(gpus)
}

/// Creates a simulated node, and returns the pod of the chart's DaemonSet on it, whose rights the measured probe uses.
async fn node(cluster: &Cluster) -> Result<(Fleet, String)> {
    let fleet = Fleet::start(cluster).await?;
    let mut node = FleetNode::with_gpus(NODE, "2330", GPUS as usize);
    node.faults.mute_probe = true;
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

    async fn phase(&self, what: &str, time: Duration, allowed: f64) -> Result<Column> {
        let mark = self.cluster.audit().mark()?;
        let before = self.probe.usage()?;
        step(what, String::new, pause(time)).await?;
        let after = self.probe.usage()?;
        let restarted = "the NVML process was restarted during the phase, so its figures are meaningless";
        ensure!(after.child_id == before.child_id, "{what}: {restarted}; {}", self.probe.log_tail());
        let sent = self.cluster.audit().requests(PROBE, mark)?.without_watches();
        print_requests(&sent);
        let node = self.nodes().get(NODE).await?;
        let counted: u64 = report(&node).map_or(0, counted_xids);
        let both = after.probe.peak_resident + after.child.peak_resident;
        let milliseconds = |cpu: Duration| cpu.as_secs_f64() * 1_000.0;
        let mut column = Column::new(format!("{what}, {} s", time.as_secs()));
        column
            .measure("resident memory of the probe, MiB", mib(after.probe.resident))
            .measure("peak of the probe so far, MiB", mib(after.probe.peak_resident))
            .measure("resident memory of its NVML process, MiB", mib(after.child.resident))
            .measure("peak of its NVML process so far, MiB", mib(after.child.peak_resident))
            .measure("of which is the library, MiB", mib(after.library.resident))
            .measure("the library as it is mapped, MiB", mib(after.library.size))
            .measure("both at their peak, beyond the library, MiB", mib(both.saturating_sub(after.library.resident)))
            .at_most(MEMORY_LIMIT)
            .count("processor time of the probe, ms", milliseconds(after.probe.since(before.probe).cpu))
            .count("processor time of its NVML process, ms", milliseconds(after.child.since(before.child).cpu))
            .count("requests to the API server, but for the watch", requests(&sent))
            .at_most(allowed)
            .count("XIDs that the report counts, rounded down", u32::try_from(counted)?);
        Ok(column)
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
