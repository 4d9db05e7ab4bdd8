//! The health of a node's GPUs over time.

use std::{collections::BTreeMap, time::Duration};

use gpu_host::{
    nvml::{
        protocol::{Inventory, NvmlGpu},
        supervisor::NvmlStatus,
    },
    observe::{
        kernel_log::{NewEvents, XidsByGpu},
        pci::PciGpu,
    },
};
use gpu_operator_crd::{
    health::{CauseKind, GpuHealth},
    report::Report,
};
use k8s_openapi::jiff::Timestamp;

use super::{
    gpu::{Gpu, GpuObservation},
    rules::Rules,
};

/// One start of the driver: if any field changes, every GPU was restarted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverStart {
    pub boot_id: String,
    pub loaded: Option<String>,
    /// Identifies one load of the module.
    pub load_id: Option<u64>,
}

impl DriverStart {
    /// Returns the start that a report was made on.
    pub fn of(report: &Report) -> Self {
        Self { boot_id: report.boot_id.clone(), loaded: report.driver.loaded.clone(), load_id: report.driver.load_id }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct NodeLook<'a> {
    pub start: &'a DriverStart,
    pub on_bus: &'a [PciGpu],
    pub nvml: &'a NvmlStatus,
    pub events: &'a NewEvents,
}

/// The precision of the API's times: events within this period before and after a restart cannot be distinguished.
const A_SECOND: Duration = Duration::from_secs(1);

/// The health of every GPU on the bus, by PCI address.
#[derive(Clone, Debug, Default)]
pub struct NodeHealth {
    gpus: BTreeMap<String, Gpu>,
    start: Option<DriverStart>,
}

impl NodeHealth {
    pub fn restore(rules: &Rules, report: &Report) -> Self {
        let gpus = report
            .gpus
            .iter()
            .map(|gpu| (gpu.pci_address.clone(), Gpu::restore(rules, &gpu.health, gpu.uuid.as_deref())));
        Self { gpus: gpus.collect(), start: Some(DriverStart::of(report)) }
    }

    pub fn of(&self, address: &str) -> GpuHealth {
        self.gpus.get(address).map(Gpu::health).unwrap_or_default()
    }

    /// Evaluates one look at the node and the events since the previous one. XIDs of a driver that is no longer loaded
    /// are ignored.
    pub fn step(&mut self, rules: &Rules, look: &NodeLook<'_>, now: Timestamp) {
        let NodeLook { start, on_bus, nvml, events } = *look;
        self.gpus.retain(|address, _| on_bus.iter().any(|gpu| gpu.address == *address));
        // The log's order has already dropped what came before the driver was loaded: everything left came later.
        let loaded = events.driver_loaded.and_then(|at| at.checked_sub(A_SECOND).ok());
        let restarted = self.restarted(start).then(|| loaded.unwrap_or(now));
        for PciGpu { address, .. } in on_bus {
            let gpu = self.gpus.entry(address.clone()).or_default();
            if let Some(at) = restarted {
                gpu.restarted(at);
            }
            let xids =
                events.xids.get(address).filter(|_| start.loaded.is_some()).map(Vec::as_slice).unwrap_or_default();
            gpu.step(rules, &observation(nvml, address), xids, now);
        }
        self.add_switch_errors(rules, &events.switch_errors, now);
    }

    /// Every GPU depends on every `NVSwitch` of its machine.
    pub fn add_switch_errors(&mut self, rules: &Rules, errors: &XidsByGpu, now: Timestamp) {
        if !errors.is_empty() {
            self.gpus.values_mut().for_each(|gpu| gpu.add_switch_errors(rules, errors, now));
        }
    }

    pub fn add_xids(&mut self, rules: &Rules, xids: &XidsByGpu, now: Timestamp) {
        for (address, xids) in xids {
            if let Some(gpu) = self.gpus.get_mut(address) {
                gpu.step(rules, &GpuObservation::NotQueried, xids, now);
            }
        }
    }

    /// Returns whether the driver was restarted since the previous look. If none is loaded, the restart is still in
    /// progress.
    fn restarted(&mut self, start: &DriverStart) -> bool {
        start.loaded.is_some() && self.start.replace(start.clone()).is_some_and(|before| before != *start)
    }
}

fn observation<'a>(nvml: &'a NvmlStatus, address: &str) -> GpuObservation<'a> {
    let inventory = match nvml {
        NvmlStatus::Answering(inventory) => inventory,
        NvmlStatus::Failing(why) => return GpuObservation::NotAnswering(Some(why)),
        NvmlStatus::Absent(_) | NvmlStatus::Released => return GpuObservation::NotAnswering(None),
    };
    if let Some(gpu) = inventory.gpus.iter().find(|gpu| gpu.pci_address == address) {
        return GpuObservation::Read {
            readings: &gpu.readings,
            uuid: gpu.uuid.as_deref(),
            peer_nvlinks: peer_nvlinks(inventory, gpu),
        };
    }
    match inventory.refused.iter().find(|refused| refused.pci_address == address) {
        Some(refused) => GpuObservation::NotOpened(refused.kind, &refused.message),
        None => GpuObservation::NotOpened(CauseKind::NotListed, "the GPU is on the PCI bus, but NVML does not list it"),
    }
}

/// Returns how many NVLinks are active on more than half of the other GPUs of the same model.
fn peer_nvlinks(inventory: &Inventory, gpu: &NvmlGpu) -> Option<usize> {
    let others = inventory.gpus.iter().filter(|other| other.pci_address != gpu.pci_address && other.name == gpu.name);
    let active: Vec<usize> = others.filter_map(|other| other.readings.active_nvlinks()).collect();
    let most = active.iter().copied().max()?;
    (active.iter().filter(|active| **active == most).count() * 2 > active.len()).then_some(most)
}
