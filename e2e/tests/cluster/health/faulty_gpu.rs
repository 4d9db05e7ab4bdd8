//! A node one of whose GPUs has faults, and where its health is reported.

use anyhow::{Context, Result, ensure};
use cluster::standin::Gpu;
use gpu_operator_crd::{
    health::{GpuHealth, HealthState},
    keys,
    reason::Reason,
    report::Report,
};
use harness::wait::eventually;
use k8s_openapi::api::events::v1::Event;
use kube::{Api, api::ListParams};
use serde_json::{Map, Value};

use crate::support::{Fixture, GPUS, SHOWN};

/// One reading per second, and one is enough, so that the whole table takes only minutes.
pub const FAST: &str = "{health: {interval: 1s, confirmIntervals: 1, cleanIntervals: 1, minHealthyGPUs: 7}}";
/// The index of the GPU with the faults.
pub(super) const FAULTY: usize = 3;

/// Returns the reason that nodes and policies report for a GPU's state.
pub(super) fn reason(state: HealthState) -> Reason {
    match state {
        HealthState::Unhealthy => Reason::GpuUnhealthy,
        HealthState::Unknown => Reason::HealthUnknown,
        HealthState::Degraded | HealthState::Recovering => Reason::GpuDegraded,
        HealthState::Healthy => Reason::AllGpusHealthy,
    }
}

impl Fixture {
    /// Sets these fields of the GPU in the stand-in NVML.
    pub(super) fn set_faults(&self, state: &Map<String, Value>) -> Result<()> {
        let mut gpus = Gpu::h100(GPUS);
        gpus[FAULTY].state.clone_from(state);
        self.host.standin().set_gpus(&gpus)
    }

    pub(super) async fn report(&self) -> Result<Report> {
        self.status().await?.report.context("no report")
    }

    /// Waits until the GPU has this health and the others are healthy.
    pub(super) async fn wait_for_health(&self, what: &str, check: impl Fn(&GpuHealth) -> bool) -> Result<GpuHealth> {
        let check = &check;
        eventually(SHOWN, what, || async move {
            let report = self.report().await?;
            for (place, gpu) in report.gpus.iter().enumerate() {
                let fits = if place == FAULTY { check(&gpu.health) } else { gpu.health.state == HealthState::Healthy };
                ensure!(fits, "GPU {}: {:?}", gpu.pci_address, gpu.health);
            }
            Ok(report.gpus[FAULTY].health.clone())
        })
        .await
    }

    /// Waits until the probe's metrics report this state of the GPU.
    pub(super) async fn wait_for_probe_metrics(&self, state: HealthState) -> Result<()> {
        let address = &format!("pci_address=\"{}\"", Gpu::h100(GPUS)[FAULTY].pci_address);
        let state = &format!("state=\"{state:?}\"");
        eventually(SHOWN, &format!("the probe's metrics with {state}"), || async move {
            let metrics = self.ask_probe("/metrics").await?;
            let mut lines = metrics.lines().filter(|line| line.starts_with("nvml_probe_gpu_health{"));
            let line = lines.find(|line| line.contains(address) && line.contains(state));
            ensure!(line.is_some_and(|line| line.ends_with(" 1.0")), "{line:?}");
            Ok(())
        })
        .await
    }

    /// Waits until the probe has read this value of the GPU's energy counter.
    pub(super) async fn wait_for_energy(&self, joules: f64) -> Result<()> {
        let address = &format!("pci_address=\"{}\"", Gpu::h100(GPUS)[FAULTY].pci_address);
        eventually(SHOWN, &format!("an energy counter of {joules} J"), || async move {
            let metrics = self.ask_probe("/metrics").await?;
            let mut lines = metrics.lines().filter(|line| line.starts_with("nvml_probe_gpu_energy_joules_total{"));
            let line = lines.find(|line| line.contains(address)).context("no counter")?;
            let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
            ensure!(value == Some(joules), "{line}");
            Ok(())
        })
        .await
    }

    /// Waits until the GpuNode's column, the policy's counts and condition, the Node's condition and the operator's
    /// metrics report this number of GPUs in the state, and the others as healthy.
    pub(super) async fn wait_until_reported(&self, state: HealthState, gpus: u32) -> Result<()> {
        if gpus <= 1 {
            self.wait_for_probe_metrics(state).await?;
        }
        // Unhealthy, degraded, unknown.
        let wanted = match state {
            HealthState::Unhealthy => (gpus, 0, 0),
            HealthState::Unknown => (0, 0, gpus),
            HealthState::Degraded | HealthState::Recovering => (0, gpus, 0),
            HealthState::Healthy => (0, 0, 0),
        };
        let is_degraded = if state == HealthState::Healthy { "False" } else { "True" };
        let healthy = match state {
            HealthState::Unhealthy => "False",
            HealthState::Unknown => "Unknown",
            HealthState::Degraded | HealthState::Recovering | HealthState::Healthy => "True",
        };
        eventually(SHOWN, &format!("{gpus} GPUs reported as {state:?}"), || async move {
            let status = self.status().await?;
            ensure!(status.health == Some(state), "HEALTH is {:?}", status.health);
            let policy = self.policies().get(&self.policy).await?.status.context("no status")?;
            let counts = (policy.gpus.unhealthy, policy.gpus.degraded, policy.gpus.unknown);
            ensure!(counts == wanted, "the policy counts {counts:?}");
            let condition = policy
                .conditions
                .iter()
                .find(|condition| condition.type_ == "Degraded")
                .context("no condition Degraded")?;
            ensure!(
                condition.status == is_degraded && condition.reason == reason(state).as_str(),
                "condition of the policy: {condition:?}"
            );
            let conditions = self.node().await?.status.and_then(|status| status.conditions).unwrap_or_default();
            let condition = conditions.iter().find(|condition| condition.type_ == keys::HEALTH_CONDITION);
            let condition = condition.context("the Node has no such condition")?;
            ensure!(
                condition.status == healthy && condition.reason.as_deref() == Some(reason(state).as_str()),
                "condition of the Node: {condition:?}"
            );
            let metrics = self.ask_operator("/metrics").await?;
            for (state, count) in [("unhealthy", wanted.0), ("degraded", wanted.1), ("unknown", wanted.2)] {
                let line = format!(r#"{{policy="{}",pool="nvidia-h100-80gb",state="{state}"}} {count}"#, self.policy);
                ensure!(
                    metrics.contains(&format!("gpu_operator_pool_gpus_with_problems{line}")),
                    "no {line} in {metrics}"
                );
            }
            Ok(())
        })
        .await
    }

    pub(super) async fn wait_for_taint(&self, wanted: bool) -> Result<()> {
        eventually(SHOWN, &format!("taint of unhealthy GPUs: {wanted}"), || async move {
            let taints = self.node().await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
            let there = taints.iter().any(|taint| taint.key == keys::UNHEALTHY_TAINT && taint.effect == "NoSchedule");
            ensure!(there == wanted, "{taints:?}");
            Ok(())
        })
        .await
    }

    /// Returns the number of Events on the Node with one of these reasons, including repetitions.
    pub(super) async fn count_events(&self, reasons: &[Reason]) -> Result<i32> {
        let events: Vec<Event> = Api::all(self.cluster.client()).list(&ListParams::default()).await?.items;
        let one_of = |event: &&Event| reasons.iter().any(|reason| event.reason.as_deref() == Some(reason.as_str()));
        let of_node = events.iter().filter(one_of).filter(|event| {
            event.regarding.as_ref().is_some_and(|regarding| regarding.name.as_ref() == Some(&self.host.name()))
        });
        Ok(of_node.map(|event| event.series.as_ref().map_or(1, |series| series.count)).sum())
    }

    pub(super) async fn wait_for_another_event(&self, reasons: &[Reason], before: i32) -> Result<()> {
        eventually(SHOWN, &format!("an Event {reasons:?}"), || async move {
            let times = self.count_events(reasons).await?;
            ensure!(times > before, "{times} Events");
            Ok(())
        })
        .await
    }
}
