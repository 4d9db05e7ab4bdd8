//! Random faults of GPUs and their recovery. The resulting health is computed by the probe's own rules, with shorter delays.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use gpu_host::{
    nvml::readings::Readings,
    observe::kernel_log::{XidCount, XidSource},
};
use gpu_operator_crd::health::{CauseKind, GpuHealth, HealthRules, HealthState};
use k8s_openapi::jiff::Timestamp;
use nvml_probe::health::{
    gpu::{Gpu, GpuObservation},
    rules::Rules,
};
use serde::Deserialize;
use serde_json::{Map, Value};
use test_support::faults::{Fault, Faults};

/// On average, one in this number of changes is a step of recovery, as long as a GPU is not healthy; the others are faults of
/// healthy GPUs.
const RECOVERY_RATIO: u64 = 2;

/// The GPUs of a fleet, whose health changes at random: with the same seed, the same changes in the same order.
pub(super) struct RandomFaults {
    rules: Rules,
    healthy: Readings,
    faults: Vec<ProbedFault>,
    /// The GPUs of all nodes, node by node.
    gpus: Vec<Gpu>,
    gpus_per_node: usize,
    /// The indices of the GPUs that are not healthy.
    unhealthy: Vec<usize>,
    /// The number of such GPUs of each node that has any.
    unhealthy_by_node: BTreeMap<usize, usize>,
    random: Random,
}

/// A change of one GPU's health.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub node: usize,
    /// The index of the GPU in its node.
    pub gpu: usize,
    pub health: GpuHealth,
}

/// A fault as the probe sees it.
struct ProbedFault {
    message: String,
    /// The cause, if the GPU cannot be opened.
    refused: Option<CauseKind>,
    readings: Readings,
    xids: Vec<XidCount>,
}

/// The fields of a device in the stand-in's format.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Device {
    error: Option<u32>,
    readings: Readings,
    xids: Vec<XidEntry>,
}

#[derive(Deserialize)]
struct XidEntry {
    xid: u16,
}

impl RandomFaults {
    /// Creates the GPUs of `nodes` nodes. All of them are healthy at first.
    pub(super) fn new(nodes: usize, gpus_per_node: usize, seed: u64, now: Timestamp) -> Result<Self> {
        // One bad reading confirms a cause, one clean reading starts the recovery, and a second one ends it.
        let rules = HealthRules { confirm_intervals: Some(1), clean_intervals: Some(2), ..HealthRules::default() };
        let rules = Rules::from(rules);
        let Faults { well, faults } = Faults::read();
        let healthy = device(&well).context("the healthy GPU")?.readings;
        // A GPU whose health is unknown has no causes.
        let known = faults.iter().filter(|fault| fault.state != HealthState::Unknown);
        let faults = known.map(ProbedFault::new).collect::<Result<_>>()?;
        let mut gpu = Gpu::default();
        gpu.step(&rules, &read(&healthy), &[], now);
        Ok(Self {
            rules,
            healthy,
            faults,
            gpus: vec![gpu; nodes * gpus_per_node],
            gpus_per_node,
            unhealthy: Vec::new(),
            unhealthy_by_node: BTreeMap::new(),
            random: Random::new(seed),
        })
    }

    /// Returns the number of nodes with a GPU that is not healthy.
    pub(super) fn unhealthy_nodes(&self) -> usize {
        self.unhealthy_by_node.len()
    }

    /// Changes the health of a random GPU.
    pub(super) fn next(&mut self, now: Timestamp) -> Change {
        let none_healthy = self.unhealthy.len() == self.gpus.len();
        let recovers = !self.unhealthy.is_empty() && (none_healthy || self.random.below(RECOVERY_RATIO) == 0);
        let index = if recovers { self.recover(now) } else { self.fail(now) };
        let health = self.gpus[index].health();
        Change { node: index / self.gpus_per_node, gpu: index % self.gpus_per_node, health }
    }

    /// Gives a GPU that is not healthy a clean reading: the first starts its recovery, the second ends it. Returns its index.
    fn recover(&mut self, now: Timestamp) -> usize {
        let entry = self.random.index(self.unhealthy.len());
        let index = self.unhealthy[entry];
        self.gpus[index].step(&self.rules, &read(&self.healthy), &[], now);
        if self.gpus[index].health().state == HealthState::Healthy {
            self.unhealthy.swap_remove(entry);
            let node = index / self.gpus_per_node;
            self.unhealthy_by_node.entry(node).and_modify(|count| *count -= 1);
            self.unhealthy_by_node.retain(|_, count| *count > 0);
        }
        index
    }

    /// Gives a healthy GPU a random fault. Returns its index.
    fn fail(&mut self, now: Timestamp) -> usize {
        let mut index = self.random.index(self.gpus.len());
        while self.unhealthy.contains(&index) {
            index = (index + 1) % self.gpus.len();
        }
        let fault = &self.faults[self.random.index(self.faults.len())];
        let reading =
            fault.refused.map_or(read(&fault.readings), |kind| GpuObservation::NotOpened(kind, &fault.message));
        self.gpus[index].step(&self.rules, &reading, &fault.xids, now);
        self.unhealthy.push(index);
        *self.unhealthy_by_node.entry(index / self.gpus_per_node).or_default() += 1;
        index
    }
}

fn read(readings: &Readings) -> GpuObservation<'_> {
    GpuObservation::Read { readings, uuid: None, peer_nvlinks: None }
}

impl ProbedFault {
    fn new(fault: &Fault) -> Result<Self> {
        let device = device(&fault.device).with_context(|| format!("a GPU that {}", fault.what))?;
        let seen =
            |entry: &XidEntry| XidCount { xid: entry.xid, count: 1, source: XidSource::Nvml, message: String::new() };
        Ok(Self {
            message: format!("the GPU {}", fault.what),
            refused: device.error.map(|_| fault.kind),
            readings: device.readings,
            xids: device.xids.iter().map(seen).collect(),
        })
    }
}

fn device(fields: &Map<String, Value>) -> Result<Device> {
    Ok(serde_json::from_value(Value::Object(fields.clone()))?)
}

/// Pseudo-random numbers from a seed (xorshift64).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gpu_operator_crd::health::Severity;

    use super::*;

    fn changes(seed: u64, count: usize) -> Vec<Change> {
        let now = Timestamp::UNIX_EPOCH;
        let mut faults = RandomFaults::new(20, 8, seed, now).unwrap();
        (0..count).map(|_| faults.next(now)).collect()
    }

    #[test]
    fn the_changes_depend_only_on_the_seed() {
        assert_eq!(changes(1, 200), changes(1, 200));
        assert_ne!(changes(1, 200), changes(2, 200));
    }

    #[test]
    fn every_change_is_possible_and_has_a_matching_cause() {
        let mut before: BTreeMap<(usize, usize), HealthState> = BTreeMap::new();
        for Change { node, gpu, health } in changes(7, 2_000) {
            let was = before.insert((node, gpu), health.state).unwrap_or(HealthState::Healthy);
            let standing = health.causes.iter().filter(|cause| !cause.recovering).map(|cause| cause.severity).max();
            match health.state {
                HealthState::Degraded => assert_eq!(standing, Some(Severity::Warning), "{health:?}"),
                HealthState::Unhealthy => assert_eq!(standing, Some(Severity::Fatal), "{health:?}"),
                HealthState::Recovering => assert!(standing.is_none() && !health.causes.is_empty(), "{health:?}"),
                HealthState::Healthy => assert!(health.causes.is_empty(), "{health:?}"),
                HealthState::Unknown => panic!("{health:?}"),
            }
            assert!(health.causes.iter().all(|cause| !cause.evidence.is_empty()), "{health:?}");
            let next = match was {
                HealthState::Healthy => [HealthState::Degraded, HealthState::Unhealthy].as_slice(),
                HealthState::Recovering => &[HealthState::Healthy],
                _ => &[HealthState::Recovering],
            };
            assert!(next.contains(&health.state), "{was:?} to {health:?}");
        }
    }

    #[test]
    fn every_kind_of_fault_occurs_recovers_and_is_counted() {
        let now = Timestamp::UNIX_EPOCH;
        let mut faults = RandomFaults::new(20, 8, 7, now).unwrap();
        let wanted: BTreeSet<CauseKind> = Faults::read()
            .faults
            .iter()
            .filter(|fault| fault.state != HealthState::Unknown)
            .map(|fault| fault.kind)
            .collect();
        let (mut kinds, mut recovered) = (BTreeSet::new(), 0);
        let mut unhealthy: BTreeSet<(usize, usize)> = BTreeSet::new();
        for _ in 0..2_000 {
            let Change { node, gpu, health } = faults.next(now);
            kinds.extend(health.causes.iter().filter_map(|cause| cause.kind.known()));
            if health.state == HealthState::Healthy {
                recovered += 1;
                unhealthy.remove(&(node, gpu));
            } else {
                unhealthy.insert((node, gpu));
            }
            let nodes: BTreeSet<usize> = unhealthy.iter().map(|(node, _)| *node).collect();
            assert_eq!(faults.unhealthy_nodes(), nodes.len());
        }
        assert_eq!(kinds, wanted);
        assert!(recovered > 100, "{recovered}");
    }
}
