//! The loop of `nvml-probe run`: reads the host, queries NVML and writes what changed.

use std::{
    borrow::Cow,
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use gpu_operator_crd::report::{CONTAINER_ROOT, InstalledDriver, Report, WAITS_FILE};
use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    admin::Admin,
    backoff::Backoff,
    brought,
    child::{Look, Supervisor, Target},
    device_nodes,
    driver::{self, DriverError, Library},
    health::{
        node::{NodeHealth, Start},
        rules::Rules,
        tally::Tally,
    },
    host::HostRoot,
    kernel_log::KernelLog,
    os,
    pci::{self, Bus, PciError},
    publish::{PublishError, Published, Publisher, Seen},
    report::{Facts, report, with_health},
    words::chain,
};

const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Time that one round may take beyond its pauses and NVML's answer: a write, ending the child, a slow node.
const SLACK: Duration = Duration::from_mins(1);

/// Returns how long the loop may go without completing a look before it counts as stuck.
#[must_use]
pub fn patience(interval: Duration, nvml_deadline: Duration) -> Duration {
    3 * interval + nvml_deadline + LONGEST_PAUSE + SLACK
}

/// A fact that could not be read. Nothing is reported in that case: a report with a gap would be taken for proof.
#[derive(Debug, thiserror::Error)]
pub enum FactError {
    /// The PCI bus cannot be read.
    #[error(transparent)]
    Pci(#[from] PciError),
    /// The driver's state cannot be read.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The operating system cannot be determined.
    #[error("cannot read the host's os-release")]
    Os(#[source] io::Error),
    /// The boot id cannot be read.
    #[error("cannot read the kernel's boot id")]
    Boot(#[source] io::Error),
}

/// The agent's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The host's file system.
    pub host: HostRoot,
    /// Path of the kernel log, as this process sees it.
    pub kernel_log: PathBuf,
    /// Pause between two looks at the host.
    pub interval: Duration,
    /// Whether the NVML child changes root into the driver's root.
    pub chroot: bool,
}

/// The agent of one node.
pub struct Agent {
    settings: Settings,
    supervisor: Supervisor,
    publisher: Publisher,
    seen: watch::Receiver<Seen>,
    admin: Admin,
    trouble: Trouble,
    log: KernelLog,
    tally: Tally,
    /// `None` until the GpuNode has been read, because it may hold the health from before this process started.
    health: Option<NodeHealth>,
    last: Option<Last>,
}

/// What ends the pause between two looks.
enum News {
    /// New XIDs, which have already been evaluated.
    Xids,
    /// The driver was loaded.
    Load,
}

/// The last query that the GPUs' health was evaluated from.
struct Last {
    at: Instant,
    target: Result<Target, Option<String>>,
    look: Look,
}

impl Agent {
    /// Creates an agent that reads its GpuNode from `seen` and publishes its own state to `admin`.
    #[must_use]
    pub fn new(
        settings: Settings,
        supervisor: Supervisor,
        publisher: Publisher,
        seen: watch::Receiver<Seen>,
        admin: Admin,
    ) -> Self {
        let (log, tally) = (KernelLog::default(), Tally::default());
        let trouble = Trouble::new();
        Self { settings, supervisor, publisher, seen, admin, trouble, log, tally, health: None, last: None }
    }

    /// Runs until `shutdown` completes. No child process is left afterwards.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        self.log = open_log(&self.settings);
        loop {
            let mut seen = self.seen.clone();
            let release = seen.borrow_and_update().release();
            // Either event can cancel a round at any await point, including a hanging NVML call.
            tokio::select! {
                () = &mut shutdown => break,
                Ok(_) = seen.wait_for(|now| now.release() != release) => {}
                () = self.round(release) => {}
            }
        }
        if let Err(stuck) = self.supervisor.end().await {
            tracing::error!("{stuck}");
        }
    }

    /// Looks at the node once, and pauses.
    async fn round(&mut self, release: Option<bool>) {
        // It is not yet known whether the driver has to be released, and nothing could be written anyway: a probe that
        // starts while a driver is being replaced must not open it.
        let Some(release) = release else {
            return std::future::pending().await;
        };
        let seen = self.seen.borrow().clone();
        self.admin.pulse.begins(Instant::now());
        let looked = self.look(&seen, release).await;
        self.admin.metrics.looked(looked.is_ok());
        let mut report = match looked {
            Ok(report) => report,
            Err(error) => return sleep(self.failed("cannot read the host", &error)).await,
        };
        let looked = Instant::now();
        self.admin.pulse.looked(looked);
        let pause = self.until_next(&seen.rules());
        loop {
            let seen = self.seen.borrow().clone();
            if let Err(error) = self.publish(&seen, &report).await {
                return sleep(self.failed("cannot write the report", &error)).await;
            }
            // XIDs are reported without waiting for the end of the pause.
            let left = pause.saturating_sub(looked.elapsed());
            match timeout(left, self.listen(&seen.rules())).await {
                Ok(News::Xids) => report = with_health(report, &self.known_health()),
                Ok(News::Load) | Err(_) => return,
            }
        }
    }

    /// Waits until the kernel log has new XIDs, which are then evaluated, or an entry that requires another look at the
    /// host.
    async fn listen(&mut self, rules: &Rules) -> News {
        loop {
            self.log.news().await;
            if self.log.tells_of_load() {
                return News::Load;
            }
            if self.hear(rules) {
                return News::Xids;
            }
        }
    }

    /// Evaluates the XIDs logged since the last look. Returns whether there were any.
    fn hear(&mut self, rules: &Rules) -> bool {
        let Some(health) = &mut self.health else { return false };
        let now = this_second();
        let xids = self.tally.logged(self.log.take(now).xids);
        health.hear(rules, &xids, now);
        self.admin.metrics.heard(health, &xids);
        !xids.is_empty()
    }

    /// Writes the report if it differs from what the GpuNode has.
    async fn publish(&mut self, seen: &Seen, report: &Report) -> Result<(), PublishError> {
        let published = self.publisher.publish(seen, report).await;
        if !matches!(published, Ok(Published::Nothing)) {
            self.admin.metrics.wrote(published.is_ok());
        }
        log(published?, report);
        self.trouble.over();
        self.admin.pulse.reported();
        Ok(())
    }

    fn failed(&mut self, what: &str, error: &dyn std::error::Error) -> Duration {
        self.admin.pulse.failed(&format!("{what}: {}", chain(error)), Instant::now());
        self.trouble.new_one(what, error)
    }

    /// Returns the pause until the host is looked at again or the GPUs have to be read.
    fn until_next(&self, rules: &Rules) -> Duration {
        let elapsed = self.last.as_ref().map_or(Duration::ZERO, |last| last.at.elapsed());
        rules.interval().saturating_sub(elapsed).min(self.settings.interval)
    }

    async fn look(&mut self, seen: &Seen, release: bool) -> Result<Report, FactError> {
        // The release comes first, so that a fact that cannot be read does not delay it.
        let released = if release { Some(self.supervisor.release().await) } else { None };
        self.log.read_all().await;
        let host = &self.settings.host;
        let libraries = driver::all_libraries(host, seen.driver_root())?;
        let start = Start {
            boot_id: os::boot_id(host).map_err(FactError::Boot)?,
            loaded: driver::loaded(host)?,
            load_id: driver::load_id(host)?,
        };
        let bus = pci::bus(host)?;
        let target = Target::choose(host, self.settings.chroot, &start.boot_id, start.loaded.as_deref(), &libraries)
            .or_else(|why| self.supervisor.serving(start.loaded.as_deref(), &start.boot_id).ok_or(why));
        let rules = seen.rules();
        let last = self.last.take().filter(|last| last.at.elapsed() < rules.interval());
        let now = Instant::now();
        let look = match (released, last) {
            (Some(Ok(())), _) => Look::Released,
            (Some(Err(stuck)), _) => Look::Failing(stuck),
            // NVML was queried recently, and nothing has happened since except perhaps XIDs.
            (None, Some(last)) if self.is_still(&last, &target) => {
                self.hear(&rules);
                let report = self.report(start, &libraries, bus, &last.look);
                self.last = Some(last);
                return report;
            }
            (None, _) => {
                let on_bus: Vec<_> = bus.gpus.iter().map(|gpu| gpu.address.clone()).collect();
                self.supervisor.look(target.clone(), &on_bus, now).await
            }
        };
        // Reads the log again: the driver writes an XID there before it passes it to NVML.
        self.log.read();
        let this_second = this_second();
        let mut heard = self.log.take(this_second);
        heard.xids = self.tally.logged(heard.xids);
        let of_nvml = look.inventory().map_or(&[][..], |inventory| &inventory.xids);
        for (address, xids) in self.tally.told(of_nvml) {
            heard.xids.entry(address).or_default().extend(xids);
        }
        let before = || seen.report().map_or_else(NodeHealth::default, |report| NodeHealth::restore(&rules, report));
        let health = self.health.get_or_insert_with(before);
        health.step(&rules, &start, &bus.gpus, &look, &heard, this_second);
        self.admin.metrics.show(&bus.gpus, &look, health, &heard.xids);
        let report = self.report(start, &libraries, bus, &look);
        self.last = Some(Last { at: now, target, look });
        report
    }

    /// Returns whether the result of the last query is still valid.
    fn is_still(&self, last: &Last, target: &Result<Target, Option<String>>) -> bool {
        last.target == *target && matches!(last.look, Look::Answering(_)) && !self.log.tells_of_load()
    }

    /// Collects the remaining facts and builds the report. The module's use is read last, when the child has settled;
    /// before that it would change from one report to the next.
    fn report(&self, start: Start, libraries: &[Library], bus: Bus, look: &Look) -> Result<Report, FactError> {
        let host = &self.settings.host;
        let facts = Facts {
            boot_id: start.boot_id,
            os: os::release(host).map_err(FactError::Os)?,
            machine: os::machine(host),
            bus,
            loaded: start.loaded,
            container_ran: driver::container_ran(host)?,
            load_id: start.load_id,
            in_use: driver::in_use(host)?,
            installed: libraries.iter().map(|library| installed(host, library)).collect(),
            waits: host.read_if_present(WAITS_FILE).ok().flatten().filter(|words| !words.is_empty()),
            runtimes: brought::runtimes(host),
        };
        Ok(report(&facts, look, &self.known_health()))
    }

    fn known_health(&self) -> Cow<'_, NodeHealth> {
        self.health.as_ref().map_or_else(Cow::default, Cow::Borrowed)
    }
}

/// Returns a driver with what its root lacks. Device nodes are checked only in a container's root: a host creates its
/// own when they are first opened.
fn installed(host: &HostRoot, library: &Library) -> InstalledDriver {
    let missing_devices = if library.root == CONTAINER_ROOT {
        device_nodes::missing(host, &HostRoot::new("/"), CONTAINER_ROOT)
    } else {
        Vec::new()
    };
    InstalledDriver { missing_devices, ..library.into() }
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
    if published != Published::Nothing {
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

/// The last error and the pause that follows it. An error that repeats is logged once.
struct Trouble {
    backoff: Backoff,
    said: String,
}

impl Trouble {
    fn new() -> Self {
        Self { backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE), said: String::new() }
    }

    fn new_one(&mut self, what: &str, error: &dyn std::error::Error) -> Duration {
        let pause = self.backoff.failed(Instant::now());
        let text = chain(error);
        if self.said != text {
            tracing::warn!(error = text, "{what}; retrying");
            self.said = text;
        }
        pause
    }

    fn over(&mut self) {
        self.backoff.succeeded();
        self.said.clear();
    }
}
