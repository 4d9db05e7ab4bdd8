mod findings;
mod lifecycle;
mod node;
mod properties;

use std::time::Duration;

use gpu_host::{
    nvml::readings::{Ecc, Fabric, Pcie, Readings, RemappedRows, RetiredPages, Thermal},
    observe::kernel_log::{XidCount, XidSource},
};
use gpu_operator_crd::health::{Action, CauseKind, GpuHealth, HealthState};
use k8s_openapi::jiff::Timestamp;

use super::{
    gpu::{Gpu, GpuObservation},
    rules::Rules,
};

/// A healthy card that provides every value.
fn well() -> Readings {
    Readings {
        thermal: Thermal {
            gpu: Some(40),
            memory: Some(45),
            slowdown_at: Some(87),
            shutdown_at: Some(92),
            ..Thermal::default()
        },
        energy_millijoules: Some(1_000_000),
        clock_reasons: Some(0),
        performance_state: Some(0),
        gpu_utilization_percent: Some(50),
        ecc: Ecc {
            enabled: Some(true),
            volatile_corrected: Some(0),
            volatile_uncorrected: Some(0),
            aggregate_corrected: Some(0),
            aggregate_uncorrected: Some(0),
            sram_threshold_exceeded: Some(false),
        },
        pages: Some(RetiredPages { correctable: 0, uncorrectable: 0, pending: Some(false) }),
        rows: Some(RemappedRows::default()),
        nvlinks: vec![true; 18],
        fabric: Some(Fabric { state: 3, status: 0, health: Some(1) }),
        pcie: Pcie {
            generation: Some(5),
            max_generation: Some(5),
            width: Some(16),
            max_width: Some(16),
            replays: Some(0),
        },
        persistence: Some(true),
        recovery_action: Some(0),
        inforom_corrupt: Some(false),
        ..Readings::default()
    }
}

fn wrong(change: impl FnOnce(&mut Readings)) -> Readings {
    let mut readings = well();
    change(&mut readings);
    readings
}

/// A GPU that is observed every half minute.
struct Watched {
    gpu: Gpu,
    rules: Rules,
    now: Timestamp,
}

impl Watched {
    fn new() -> Self {
        Self::with(Rules::default())
    }

    fn with(rules: Rules) -> Self {
        Self { gpu: Gpu::default(), rules, now: "2026-01-01T00:00:00Z".parse().unwrap() }
    }

    fn observe(&mut self, observation: &GpuObservation<'_>, xids: &[XidCount]) -> GpuHealth {
        self.now += Duration::from_secs(30);
        self.gpu.step(&self.rules, observation, xids, self.now);
        self.gpu.health()
    }

    fn read(&mut self, readings: &Readings) -> GpuHealth {
        self.observe(&GpuObservation::Read { readings, uuid: Some("GPU-a"), peer_nvlinks: None }, &[])
    }

    /// Reads a healthy GPU, together with XIDs.
    fn read_with_xids(&mut self, xids: &[(u16, u64)]) -> GpuHealth {
        let xids: Vec<XidCount> = xids.iter().map(|(xid, count)| event(*xid, *count)).collect();
        self.observe(&GpuObservation::Read { readings: &well(), uuid: Some("GPU-a"), peer_nvlinks: None }, &xids)
    }

    /// Restarts the probe.
    fn restored(&mut self) {
        self.gpu = Gpu::restore(&self.rules, &self.gpu.health(), Some("GPU-a"));
    }
}

fn event(xid: u16, count: u64) -> XidCount {
    XidCount { xid, count, source: XidSource::Nvml, message: String::new() }
}

/// The state, the action, and each cause with whether it is recovering.
fn outline(health: &GpuHealth) -> (HealthState, Action, Vec<(CauseKind, bool)>) {
    let causes = health.causes.iter().filter_map(|cause| Some((cause.kind.known()?, cause.recovering))).collect();
    (health.state, health.action.known().unwrap_or_default(), causes)
}
