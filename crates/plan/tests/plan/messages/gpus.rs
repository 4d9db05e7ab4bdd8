//! Missing, unhealthy and failing GPUs.

use super::{A, Condition, NodeCondition, NodeEvent, Scenario, Steps};
use crate::{
    health::{publishes, set_health},
    sim::{Faults, Sim},
};
use gpu_operator_crd::{health::HealthState, reason::Reason, report::NvmlState};

/// Returns a ready node with a GPU in this state.
fn with_gpu(state: HealthState) -> Sim {
    Sim::settled_fleet("{}", &["a"]).then(|sim| set_health(sim, 3, state))
}

/// Returns a ready node whose GPU was in a state, and has recovered.
fn recovered(state: HealthState) -> Sim {
    with_gpu(state)
        .then(|sim| publishes(sim, 7))
        .run_for(60)
        .then(|sim| set_health(sim, 3, HealthState::Healthy))
        .run_for(60)
}

pub const SCENARIOS: &[Scenario] = &[
    (Reason::GpuMissing, A, || Sim::settled_fleet("{}", &["a"]).then(|sim| drop(sim.report("a").gpus.pop()))),
    (Reason::GpuMissing, A, || Sim::settled_fleet("{}", &["a"]).then(|sim| sim.report("a").gpus.clear())),
    (Reason::GpuUnhealthy, A, || with_gpu(HealthState::Unhealthy)),
    (Reason::GpuUnhealthy, Condition("Degraded"), || with_gpu(HealthState::Unhealthy)),
    (Reason::GpuDegraded, A, || with_gpu(HealthState::Degraded)),
    (Reason::HealthUnknown, A, || {
        Sim::settled_fleet("{}", &["a"]).faulty(Faults { no_probe: true, ..Faults::default() })
    }),
    (Reason::NvmlFailed, A, || {
        Sim::settled_fleet("{}", &["a"]).then(|sim| {
            let nvml = &mut sim.report("a").nvml;
            (nvml.state, nvml.message) = (NvmlState::Failing, Some("nvmlInit: Unknown Error".into()));
            sim.node_mut("a").allocatable = 0.into();
        })
    }),
    (Reason::DevicePluginRestarted, NodeEvent, || recovered(HealthState::Unhealthy)),
    (Reason::GpusReplaced, NodeEvent, || {
        Sim::settled_fleet("{}", &["a"]).then(|sim| {
            sim.reboot("a", 0);
            sim.plug("a", &["1eb8"; 4]);
        })
    }),
    (Reason::AllGpusHealthy, Condition("Degraded"), || recovered(HealthState::Degraded)),
    (Reason::AllGpusHealthy, NodeCondition("a"), || recovered(HealthState::Unhealthy)),
];
