//! The report of a simulated node's probe.

use gpu_operator_crd::{
    health::{GpuHealth, HealthState},
    report::{DriverFacts, Gpu, GpuPods, InstalledDriver, NvmlFacts, NvmlState, Report},
};

use super::machine::{Inputs, Machine};

/// Returns the report of the node's current state.
pub(super) fn report(machine: &Machine, inputs: &Inputs<'_>) -> Report {
    let node = inputs.node;
    let held = machine.nvml_held(inputs);
    let failure = node.behaviour.nvml_failure.as_ref().filter(|_| held);
    let state = match (inputs.requests.release, held, failure) {
        (true, ..) => NvmlState::Released,
        (false, true, Some(_)) => NvmlState::Failing,
        (false, true, None) => NvmlState::Answering,
        (false, false, _) => NvmlState::Absent,
    };
    let answering = state == NvmlState::Answering;
    let gpus = node.gpus.iter().enumerate().map(|(index, device_id)| Gpu {
        pci_address: format!("0000:{:02x}:00.0", index + 6),
        device_id: device_id.clone(),
        product: answering.then(|| format!("NVIDIA device {device_id}")),
        uuid: answering.then(|| node.gpu_uuid(index)),
        memory_mib: answering.then_some(81_559),
        health: if answering { node.health.get(&index).cloned().unwrap_or_else(healthy) } else { GpuHealth::default() },
        ..Gpu::default()
    });
    let mut installed: Vec<InstalledDriver> = Vec::new();
    for root in machine.roots(node) {
        if let Some(version) = machine.library(root, node) {
            installed.push(InstalledDriver {
                root: root.to_owned(),
                version: version.to_owned(),
                ..InstalledDriver::default()
            });
        }
    }
    Report {
        probe_version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: node.boot_id(machine.boots),
        os: node.os.clone(),
        gpus: gpus.collect(),
        passed_through: 0,
        driver: DriverFacts {
            loaded: machine.module.clone(),
            load_id: None,
            in_use: machine.in_use(inputs),
            holders: inputs.requests.holders.then(Vec::new),
            container_ran: machine.state_file,
            config_digest: None,
            installed,
            waits: None,
            load_errors: Vec::new(),
            cuda_version: answering.then(|| "13.1".to_owned()),
            cuda_error: None,
        },
        nvml: NvmlFacts {
            state,
            message: failure.cloned(),
            gpus: answering.then(|| u32::try_from(node.gpus.len()).unwrap_or(u32::MAX)),
        },
        runtimes: node.host_runtimes.clone(),
        gpu_pods: inputs.requests.holders.then(|| gpu_pods(machine, inputs)),
        ..Report::default()
    }
}

/// Returns the pods that have GPUs, as kubelet lists them.
fn gpu_pods(machine: &Machine, inputs: &Inputs<'_>) -> GpuPods {
    let users = inputs.staying().filter(|pod| pod.uses_gpu && machine.is_running(pod));
    let mut names: Vec<_> = users.map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
    names.sort();
    let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
    names.truncate(10);
    GpuPods { count, names }
}

fn healthy() -> GpuHealth {
    GpuHealth { state: HealthState::Healthy, ..GpuHealth::default() }
}
