//! A running agent: a host in a directory, the stand-in NVML, and a mocked API server.

use std::{future::Future, path::PathBuf, sync::Arc, time::Duration};

use gpu_host::{
    nvml::supervisor::{Limits, Supervisor, child_command},
    observe::driver::CONTAINER_ROOT,
};
use gpu_operator_crd::{
    health::{CauseKind, GpuHealth, HealthRules, HealthState},
    report::Report,
};
use nvml_probe::{
    agent::{
        Agent, Settings,
        metrics::Metrics,
        telemetry::{Heartbeat, Telemetry},
    },
    report::gpu_node::{GpuNodeFields, GpuNodeView, Publisher, Requests},
};
use serde_json::{Value, json};
use test_api_server::Api;
use test_support::host::Host;
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
};

use crate::{PROBE, api_server::PATH};

/// Address and uuid of the host's GPUs.
pub const GPUS: [(&str, &str); 2] = [("0000:06:00.0", "GPU-six"), ("0000:07:00.0", "GPU-seven")];
/// The host's driver.
pub const VERSION: &str = "580.173.02";
/// The host's kernel log; without the file, there is none.
pub const KERNEL_LOG: &str = "dev/kmsg";
/// The pause between two looks at the host.
pub const INTERVAL: Duration = Duration::from_millis(20);

/// A running agent.
pub struct Running {
    pub server: Api,
    pub seen: watch::Sender<GpuNodeView>,
    pub telemetry: Telemetry,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    pub fn start(host: &Host, seen: GpuNodeView, limits: Limits) -> Self {
        Self::launch(host, seen, Supervisor::new(child_command(PathBuf::from(PROBE)), limits))
    }

    pub fn launch(host: &Host, seen: GpuNodeView, supervisor: Supervisor) -> Self {
        Self::looking_every(INTERVAL, host, seen, supervisor)
    }

    pub fn looking_every(interval: Duration, host: &Host, seen: GpuNodeView, supervisor: Supervisor) -> Self {
        let server = Api::new();
        if let GpuNodeView::Present(own) = &seen {
            let bare =
                json!({"apiVersion": "gpu.nodestack.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n1"}});
            server.put(PATH, bare);
            if let Some(report) = &own.report {
                server.apply_status("nvml-probe", PATH, &json!({"report": report}));
            }
        }
        let (sender, receiver) = watch::channel(seen);
        let (stop, stopped) = oneshot::channel::<()>();
        let settings = Settings {
            host: host.root(),
            kernel_log: host.path(KERNEL_LOG),
            kubelet_root: None,
            interval,
            chroot: false,
        };
        let heartbeat = Heartbeat::new(Duration::from_mins(1));
        let telemetry = Telemetry { heartbeat: Arc::new(heartbeat), metrics: Arc::new(Metrics::new("n1")) };
        let publisher = Publisher::new(server.client(), "n1");
        let agent = Agent::new(settings, supervisor, publisher, receiver, telemetry.clone());
        let task = tokio::spawn(agent.run(async {
            drop(stopped.await);
        }));
        Self { server, seen: sender, telemetry, stop, task }
    }

    pub fn report(&self) -> Option<Report> {
        serde_json::from_value(self.server.get(PATH)["status"]["report"].take()).ok()
    }

    /// Returns the first report that satisfies the condition, and shows it to the agent as its watch would.
    pub async fn reports(&self, wanted: impl Fn(&Report) -> bool) -> Report {
        let report = soon(async {
            loop {
                match self.report() {
                    Some(report) if wanted(&report) => return report,
                    _ => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        })
        .await;
        let release = self.seen.borrow().requests().unwrap().release;
        self.sees(release, Some(report.clone()));
        report
    }

    /// As [`Self::reports`], but shows the agent every report, and keeps its rules.
    pub async fn awaits(&self, wanted: impl Fn(&Report) -> bool) -> Report {
        soon(async {
            loop {
                let report = self.report();
                self.sees_written(report.clone());
                match report {
                    Some(report) if wanted(&report) => return report,
                    _ => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        })
        .await
    }

    /// Sets whether the GpuNode requests a release.
    pub fn releases(&self, release: bool) {
        self.own(|own| own.requests.release = release);
    }

    /// Sets whether the GpuNode requests a list of the programs that hold the GPUs.
    pub fn lists_holders(&self, holders: bool) {
        self.own(|own| own.requests.holders = holders);
    }

    fn sees_written(&self, report: Option<Report>) {
        self.own(|own| own.report = report);
    }

    fn own(&self, change: impl FnOnce(&mut GpuNodeFields)) {
        self.seen.send_if_modified(|seen| {
            let GpuNodeView::Present(own) = seen else { return false };
            let before = own.clone();
            change(own);
            *own != before
        });
    }

    pub fn sees(&self, release: bool, report: Option<Report>) {
        self.seen.send_replace(existing(release, report));
    }

    pub async fn end(self) {
        self.stop.send(()).unwrap();
        soon(self.task).await.unwrap();
    }
}

pub fn existing(release: bool, report: Option<Report>) -> GpuNodeView {
    // The GPUs are read at every look as well.
    let rules = HealthRules { interval: Some(INTERVAL.into()), ..HealthRules::default() };
    let requests = Requests { release, ..Requests::default() };
    GpuNodeView::Present(Box::new(GpuNodeFields { requests, rules, report, ..GpuNodeFields::default() }))
}

pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(1), future).await.unwrap()
}

pub fn patient() -> Limits {
    Limits { answer: Duration::from_mins(10), ..Limits::default() }
}

pub fn node() -> Host {
    let host = Host::new();
    for (address, _) in GPUS {
        host.gpu(address, "0x2330");
    }
    host
}

/// A host whose driver serves [`GPUS`].
pub fn served() -> Host {
    let host = node();
    host.install(CONTAINER_ROOT, VERSION, &GPUS);
    host.load(VERSION);
    host
}

/// Sets these fields of the first GPU.
pub fn serve(host: &Host, fields: &Value) {
    host.serve_with(CONTAINER_ROOT, &GPUS, |machine| {
        machine["devices"][0].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    });
}

/// An agent that confirms causes at once and ends them after one clean reading: longer periods are tested without a
/// machine.
pub fn begin(host: &Host, limits: Limits, before: Option<Report>) -> Running {
    forgetting(1, host, limits, before)
}

/// As [`begin`], but ends causes after this many clean readings.
pub fn forgetting(clean: u32, host: &Host, limits: Limits, before: Option<Report>) -> Running {
    let rules = HealthRules {
        interval: Some(INTERVAL.into()),
        confirm_intervals: Some(1),
        clean_intervals: Some(clean),
        ..HealthRules::default()
    };
    let own = GpuNodeFields { rules, report: before, ..GpuNodeFields::default() };
    Running::start(host, GpuNodeView::Present(Box::new(own)), limits)
}

/// Returns the report once the first GPU is in that state with a cause of that kind, or none.
pub async fn becomes(agent: &Running, state: HealthState, kind: Option<CauseKind>) -> Report {
    agent
        .awaits(|report| {
            let health = &report.gpus[0].health;
            health.state == state && health.causes.first().and_then(|cause| cause.kind.known()) == kind
        })
        .await
}

pub fn first(report: &Report) -> &GpuHealth {
    &report.gpus[0].health
}
