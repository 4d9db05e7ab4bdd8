//! The loop of `nvml-probe run`: reads the host, queries NVML and writes what changed.

mod cuda;
pub mod facts;
pub mod metrics;
pub mod telemetry;

use std::{
    borrow::Cow,
    collections::BTreeSet,
    path::PathBuf,
    time::{Duration, Instant},
};

use gpu_host::{
    nvml::{
        protocol::CudaInit,
        supervisor::{NvmlStatus, Supervisor},
        trusted::Target,
    },
    observe::{
        driver::{self, Library},
        kernel_log::{KernelLog, NewEvents},
        os,
        pci::{self, Bus},
    },
    process::error_chain,
    root::HostRoot,
};
use gpu_operator_crd::report::{LoadedRuntime, Report};
use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use self::{cuda::CudaCheck, facts::FactError};
use crate::{
    error_log::ErrorLog,
    health::{
        node::{DriverStart, NodeHealth, NodeLook},
        rules::Rules,
        xid::XidDeduplicator,
    },
    report::{
        build::{build_report, gpu_pods, with_cuda_error, with_gpu_pods, with_health},
        gpu_node::{GpuNodeView, PublishError, Published, Publisher, Requests},
    },
};
use telemetry::Telemetry;

const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The longest pause while the operator waits for pods that have GPUs to end, or for a container runtime to enable CDI.
const LONGEST_PAUSE_WHILE_AWAITED: Duration = Duration::from_secs(10);
/// Time that one round may take beyond its pauses and NVML's answer: a write, ending the child, a slow node.
const SLACK: Duration = Duration::from_mins(1);

/// Returns how long the loop may go without completing a look before it counts as stuck.
pub fn stall_timeout(interval: Duration, nvml_deadline: Duration) -> Duration {
    3 * interval + nvml_deadline + LONGEST_PAUSE + SLACK
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub host: HostRoot,
    /// Path of the kernel log, as this process sees it.
    pub kernel_log: PathBuf,
    /// Kubelet's directory on the host. Without it, the usual ones are searched.
    pub kubelet_root: Option<String>,
    pub interval: Duration,
    /// Whether the NVML child changes root into the driver's root.
    pub chroot: bool,
}

pub struct Agent {
    settings: Settings,
    supervisor: Supervisor,
    publisher: Publisher,
    gpu_node: watch::Receiver<GpuNodeView>,
    telemetry: Telemetry,
    errors: ErrorLog,
    pod_errors: ErrorLog,
    log: KernelLog,
    deduplicator: XidDeduplicator,
    /// `None` until the GpuNode has been read, because it may hold the health from before this process started.
    health: Option<NodeHealth>,
    last: Option<LastQuery>,
    /// It changes only with a boot.
    selinux: Option<bool>,
    loaded_runtimes: Vec<LoadedRuntime>,
    cuda: CudaCheck,
}

/// What ends the pause between two looks.
enum Wake {
    /// New XIDs, which have already been evaluated.
    Xids,
    DriverLoaded,
}

/// The last query that the GPUs' health was evaluated from.
struct LastQuery {
    at: Instant,
    target: Result<Target, Option<String>>,
    nvml: NvmlStatus,
}

impl Agent {
    pub fn new(
        settings: Settings,
        supervisor: Supervisor,
        publisher: Publisher,
        gpu_node: watch::Receiver<GpuNodeView>,
        telemetry: Telemetry,
    ) -> Self {
        let (log, deduplicator) = (KernelLog::default(), XidDeduplicator::default());
        let errors = || ErrorLog::new(FIRST_PAUSE, LONGEST_PAUSE);
        Self {
            settings,
            supervisor,
            publisher,
            gpu_node,
            telemetry,
            errors: errors(),
            pod_errors: errors(),
            log,
            deduplicator,
            health: None,
            last: None,
            selinux: None,
            loaded_runtimes: Vec::new(),
            cuda: CudaCheck::default(),
        }
    }

    /// Runs until `shutdown` completes. No child process is left afterwards.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        self.log = open_log(&self.settings);
        self.selinux = facts::selinux(&self.settings.host);
        loop {
            let mut gpu_node = self.gpu_node.clone();
            let requests = gpu_node.borrow_and_update().requests();
            // Either event can cancel a round at any await point, including a hanging NVML call.
            tokio::select! {
                () = &mut shutdown => break,
                Ok(_) = gpu_node.wait_for(|now| now.requests() != requests) => {}
                () = self.round(requests) => {}
            }
        }
        if let Err(stuck) = self.supervisor.end().await {
            tracing::error!("{stuck}");
        }
    }

    async fn round(&mut self, requests: Option<Requests>) {
        // It is not yet known whether the driver has to be released, and nothing could be written anyway: a probe that
        // starts while a driver is being replaced must not open it.
        let Some(requests) = requests else {
            return std::future::pending().await;
        };
        let gpu_node = self.gpu_node.borrow().clone();
        self.telemetry.heartbeat.look_started(Instant::now());
        self.cuda.restore(gpu_node.report(), Instant::now());
        let outcome = self.look(&gpu_node, requests).await;
        self.telemetry.metrics.count_look(outcome.is_ok());
        let mut report = match outcome {
            Ok(report) => {
                self.loaded_runtimes = facts::loaded_runtimes(&self.settings.host, &self.loaded_runtimes).await;
                let report = Report { selinux: self.selinux, loaded_runtimes: self.loaded_runtimes.clone(), ..report };
                let report = with_cuda_error(self.cuda.error(&report), report);
                with_gpu_pods(report, self.gpu_pods(&gpu_node, requests).await)
            }
            Err(error) => return sleep(self.failed("cannot read the host", &error)).await,
        };
        let looked = Instant::now();
        self.telemetry.heartbeat.look_succeeded(looked);
        let pause = self.next_pause(&gpu_node.rules(), requests);
        loop {
            let gpu_node = self.gpu_node.borrow().clone();
            if let Err(error) = self.publish(&gpu_node, &report).await {
                return sleep(self.failed("cannot write the report", &error)).await;
            }
            if self.init_cuda(&report).await {
                report = with_cuda_error(self.cuda.error(&report), report);
                continue;
            }
            // XIDs are reported without waiting for the end of the pause.
            let left = pause.saturating_sub(looked.elapsed());
            match timeout(left, self.wait_for_log(&gpu_node.rules())).await {
                Ok(Wake::Xids) => report = with_health(report, &self.known_health()),
                Ok(Wake::DriverLoaded) | Err(_) => return,
            }
        }
    }

    /// Calls `cuInit` if that is due. Returns whether it was called.
    async fn init_cuda(&mut self, report: &Report) -> bool {
        let target = self
            .last
            .as_ref()
            .and_then(|last| last.target.as_ref().ok())
            .filter(|_| self.cuda.is_due(report, Instant::now()) && !cuda::is_layout_applied(&self.settings.host));
        let Some(target) = target else { return false };
        let result = self.supervisor.init_cuda(target).await;
        match &result {
            CudaInit::Succeeded => tracing::debug!("cuInit succeeds"),
            CudaInit::Failed(error) => tracing::warn!(code = error.code, name = error.name, "cuInit fails"),
            CudaInit::Unknown(why) => tracing::warn!(why, "cannot call cuInit"),
        }
        self.cuda.record(report, result, Instant::now());
        true
    }

    /// Waits until the kernel log has new XIDs, which are then evaluated, or an entry that requires another look at the
    /// host.
    async fn wait_for_log(&mut self, rules: &Rules) -> Wake {
        loop {
            self.log.wait_for_records().await;
            if self.log.driver_was_loaded() {
                return Wake::DriverLoaded;
            }
            if self.evaluate_new_xids(rules) {
                return Wake::Xids;
            }
        }
    }

    /// Evaluates the XIDs and `SXids` logged since the last look. Returns whether there were any.
    fn evaluate_new_xids(&mut self, rules: &Rules) -> bool {
        let Some(health) = &mut self.health else { return false };
        let now = this_second();
        let NewEvents { xids, switch_errors, .. } = self.log.take(now);
        let xids = self.deduplicator.from_log(xids);
        health.add_xids(rules, &xids, now);
        health.add_switch_errors(rules, &switch_errors, now);
        self.telemetry.metrics.add_xids(health, &xids);
        !xids.is_empty() || !switch_errors.is_empty()
    }

    /// Writes the report if it differs from what the GpuNode has.
    async fn publish(&mut self, gpu_node: &GpuNodeView, report: &Report) -> Result<(), PublishError> {
        let published = self.publisher.publish(gpu_node, report, Instant::now()).await;
        if !matches!(published, Ok(Published::Unchanged)) {
            self.telemetry.metrics.count_write(published.is_ok());
        }
        log(published?, report);
        self.errors.clear();
        self.telemetry.heartbeat.reported();
        Ok(())
    }

    fn failed(&mut self, what: &str, error: &dyn std::error::Error) -> Duration {
        self.telemetry.heartbeat.failed(&format!("{what}: {}", error_chain(error)), Instant::now());
        self.errors.record(what, error)
    }

    /// Returns the pause until the host is looked at again or the GPUs have to be read.
    fn next_pause(&self, rules: &Rules, requests: Requests) -> Duration {
        let elapsed = self.last.as_ref().map_or(Duration::ZERO, |last| last.at.elapsed());
        let without_cdi = self.loaded_runtimes.iter().any(|loaded| loaded.cdi == Some(false));
        let longest = if requests.holders || without_cdi { LONGEST_PAUSE_WHILE_AWAITED } else { Duration::MAX };
        rules.interval().saturating_sub(elapsed).min(self.settings.interval).min(longest)
    }

    async fn look(&mut self, gpu_node: &GpuNodeView, requests: Requests) -> Result<Report, FactError> {
        // The release comes first, so that a fact that cannot be read does not delay it.
        let released = if requests.release { Some(self.supervisor.release().await) } else { None };
        self.log.read_all().await;
        let host = &self.settings.host;
        let libraries = driver::all_libraries(host, gpu_node.driver_root())?;
        let start = facts::driver_start(host)?;
        let bus = pci::bus(host)?;
        let target = Target::choose(host, self.settings.chroot, &start.boot_id, start.loaded.as_deref(), &libraries)
            .or_else(|why| self.supervisor.running_target(start.loaded.as_deref(), &start.boot_id).ok_or(why));
        let rules = gpu_node.rules();
        let last = self.last.take().filter(|last| last.at.elapsed() < rules.interval());
        let now = Instant::now();
        let nvml = match (released, last) {
            (Some(Ok(())), _) => NvmlStatus::Released,
            (Some(Err(stuck)), _) => NvmlStatus::Failing(stuck),
            // NVML was queried recently, and nothing has happened since except perhaps XIDs.
            (None, Some(last)) if self.is_current(&last, &target) => {
                self.evaluate_new_xids(&rules);
                let report = self.report(start, &libraries, bus, &last.nvml, requests);
                self.last = Some(last);
                return report;
            }
            (None, _) => {
                let on_bus: Vec<_> = bus.gpus.iter().map(|gpu| gpu.address.clone()).collect();
                self.supervisor.query(target.clone(), &on_bus, now).await
            }
        };
        // Reads the log again: the driver writes an XID there before it passes it to NVML.
        self.log.read();
        let this_second = this_second();
        let mut events = self.log.take(this_second);
        events.xids = self.deduplicator.from_log(events.xids);
        let of_nvml = nvml.inventory().map_or(&[][..], |inventory| &inventory.xids);
        for (address, xids) in self.deduplicator.from_nvml(of_nvml) {
            events.xids.entry(address).or_default().extend(xids);
        }
        let before =
            || gpu_node.report().map_or_else(NodeHealth::default, |report| NodeHealth::restore(&rules, report));
        let health = self.health.get_or_insert_with(before);
        let look = NodeLook { start: &start, on_bus: &bus.gpus, nvml: &nvml, events: &events };
        health.step(&rules, &look, this_second);
        self.telemetry.metrics.show(&bus.gpus, &nvml, health, &events.xids);
        let report = self.report(start, &libraries, bus, &nvml, requests);
        self.last = Some(LastQuery { at: now, target, nvml });
        report
    }

    fn is_current(&self, last: &LastQuery, target: &Result<Target, Option<String>>) -> bool {
        last.target == *target && matches!(last.nvml, NvmlStatus::Answering(_)) && !self.log.driver_was_loaded()
    }

    /// Returns the pods with GPUs if they are requested. They are optional: without kubelet's socket, the operator finds out otherwise.
    async fn gpu_pods(&mut self, gpu_node: &GpuNodeView, requests: Requests) -> Option<BTreeSet<String>> {
        if !requests.holders {
            self.pod_errors.clear();
            return None;
        }
        match facts::assignments(&self.settings.host, self.settings.kubelet_root.as_deref()).await {
            Ok(assignments) => {
                self.pod_errors.clear();
                Some(gpu_pods(&assignments?, gpu_node.past_resource_names()))
            }
            Err(error) => {
                self.pod_errors.record("cannot list the pods that have GPUs", &error);
                None
            }
        }
    }

    fn report(
        &self,
        start: DriverStart,
        libraries: &[Library],
        bus: Bus,
        nvml: &NvmlStatus,
        requests: Requests,
    ) -> Result<Report, FactError> {
        let load_errors = if start.loaded.is_none() { self.log.load_errors() } else { &[] };
        let facts = facts::collect(&self.settings.host, start, libraries, bus, load_errors, requests)?;
        Ok(build_report(&facts, nvml, &self.known_health()))
    }

    fn known_health(&self) -> Cow<'_, NodeHealth> {
        self.health.as_ref().map_or_else(Cow::default, Cow::Borrowed)
    }
}

/// Opens the kernel log. Without it, XIDs come from NVML alone.
fn open_log(settings: &Settings) -> KernelLog {
    let log =
        os::booted(&settings.host, Timestamp::now()).and_then(|booted| KernelLog::open(&settings.kernel_log, booted));
    log.unwrap_or_else(|error| {
        let path = settings.kernel_log.display();
        tracing::warn!(%error, %path, "cannot read the kernel log; XIDs are reported by NVML only");
        KernelLog::default()
    })
}

/// Returns the current time in whole seconds, as the API stores it.
fn this_second() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

fn log(published: Published, report: &Report) {
    if published != Published::Unchanged {
        tracing::info!(
            created = published == Published::Created,
            gpus = report.gpus.len(),
            loaded = report.driver.loaded.as_deref().unwrap_or("none"),
            nvml = ?report.nvml.state,
            message = report.nvml.message.as_deref().unwrap_or_default(),
            "reported"
        );
    }
}
