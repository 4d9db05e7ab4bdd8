//! Faults that befall GPUs at random, and their ends. What comes of each is the probe's own judgement, at a faster pace.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use gpu_operator_crd::health::{CauseKind, GpuHealth, HealthRules, HealthState};
use k8s_openapi::jiff::Timestamp;
use nvml_probe::{
    health::{
        gpu::{Gpu, GpuObservation},
        rules::Rules,
    },
    nvml::readings::Readings,
    observe::xids::{XidCount, XidSource},
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::faults::{Fault, Faults};

/// Of so many changes, one lets a GPU go on that is not well, as long as there is one; the others make one sick that was.
const HEALS: u64 = 2;

/// A fleet of GPUs that get sick and well again: the same ones in the same order for the same seed.
pub(super) struct Sickness {
    rules: Rules,
    well: Readings,
    faults: Vec<Befalling>,
    /// One node's GPUs after the other's.
    gpus: Vec<Gpu>,
    gpus_per_node: usize,
    /// The places of those that are not well.
    sick: Vec<usize>,
    /// How many of them each node has.
    nodes: BTreeMap<usize, usize>,
    random: Random,
}

/// The health of one GPU from now on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub node: usize,
    /// Its place in the node.
    pub gpu: usize,
    pub health: GpuHealth,
}

/// A fault as the probe would meet it.
struct Befalling {
    words: String,
    /// Of a GPU that cannot be opened.
    refused: Option<CauseKind>,
    readings: Readings,
    xids: Vec<XidCount>,
}

/// What is read of a device in the stand-in's words.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Device {
    error: Option<u32>,
    readings: Readings,
    xids: Vec<Numbered>,
}

#[derive(Deserialize)]
struct Numbered {
    xid: u16,
}

impl Sickness {
    /// Of so many nodes, whose GPUs are all well at first.
    pub(super) fn new(nodes: usize, gpus_per_node: usize, seed: u64, now: Timestamp) -> Result<Self> {
        // A reading makes a cause, the next that is clean an end of it, and one more the GPU well.
        let rules = HealthRules { confirm_intervals: Some(1), clean_intervals: Some(2), ..HealthRules::default() };
        let rules = Rules::from(rules);
        let Faults { well, faults } = Faults::read()?;
        let well = device(&well).context("a GPU that is well")?.readings;
        // Of a GPU of which nothing is known there is nothing to judge.
        let known = faults.iter().filter(|fault| fault.state != HealthState::Unknown);
        let faults = known.map(Befalling::new).collect::<Result<_>>()?;
        let mut gpu = Gpu::default();
        gpu.step(&rules, &read(&well), &[], now);
        Ok(Self {
            rules,
            well,
            faults,
            gpus: vec![gpu; nodes * gpus_per_node],
            gpus_per_node,
            sick: Vec::new(),
            nodes: BTreeMap::new(),
            random: Random::new(seed),
        })
    }

    /// How many nodes have a GPU that is not well.
    pub(super) fn sick_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The next change of any GPU.
    pub(super) fn next(&mut self, now: Timestamp) -> Change {
        let all_sick = self.sick.len() == self.gpus.len();
        let heals = !self.sick.is_empty() && (all_sick || self.random.below(HEALS) == 0);
        let place = if heals { self.heal(now) } else { self.sicken(now) };
        let health = self.gpus[place].health();
        Change { node: place / self.gpus_per_node, gpu: place % self.gpus_per_node, health }
    }

    /// Lets a GPU that is not well go on: first its cause is dealt with, then it counts as well.
    fn heal(&mut self, now: Timestamp) -> usize {
        let index = self.random.index(self.sick.len());
        let place = self.sick[index];
        self.gpus[place].step(&self.rules, &read(&self.well), &[], now);
        if self.gpus[place].health().state == HealthState::Healthy {
            self.sick.swap_remove(index);
            let node = place / self.gpus_per_node;
            self.nodes.entry(node).and_modify(|sick| *sick -= 1);
            self.nodes.retain(|_, sick| *sick > 0);
        }
        place
    }

    fn sicken(&mut self, now: Timestamp) -> usize {
        let mut place = self.random.index(self.gpus.len());
        while self.sick.contains(&place) {
            place = (place + 1) % self.gpus.len();
        }
        let fault = &self.faults[self.random.index(self.faults.len())];
        let told = fault.refused.map_or(read(&fault.readings), |kind| GpuObservation::NotOpened(kind, &fault.words));
        self.gpus[place].step(&self.rules, &told, &fault.xids, now);
        self.sick.push(place);
        *self.nodes.entry(place / self.gpus_per_node).or_default() += 1;
        place
    }
}

fn read(readings: &Readings) -> GpuObservation<'_> {
    GpuObservation::Read { readings, uuid: None, peer_nvlinks: None }
}

impl Befalling {
    fn new(fault: &Fault) -> Result<Self> {
        let device = device(&fault.device).with_context(|| format!("a GPU that {}", fault.what))?;
        let seen = |numbered: &Numbered| XidCount {
            xid: numbered.xid,
            count: 1,
            source: XidSource::Nvml,
            message: String::new(),
        };
        Ok(Self {
            words: format!("the GPU {}", fault.what),
            refused: device.error.map(|_| fault.kind),
            readings: device.readings,
            xids: device.xids.iter().map(seen).collect(),
        })
    }
}

fn device(told: &Map<String, Value>) -> Result<Device> {
    Ok(serde_json::from_value(Value::Object(told.clone()))?)
}

/// Numbers at random, the same ones for the same seed (xorshift64).
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
        let mut sickness = Sickness::new(20, 8, seed, now).unwrap();
        (0..count).map(|_| sickness.next(now)).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_changes_and_another_one_others() {
        assert_eq!(changes(1, 200), changes(1, 200));
        assert_ne!(changes(1, 200), changes(2, 200));
    }

    #[test]
    fn every_change_is_one_and_has_a_cause_that_fits() {
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
    fn every_kind_of_fault_comes_and_goes_and_the_sick_are_counted() {
        let now = Timestamp::UNIX_EPOCH;
        let mut sickness = Sickness::new(20, 8, 7, now).unwrap();
        let wanted: BTreeSet<CauseKind> = Faults::read()
            .unwrap()
            .faults
            .iter()
            .filter(|fault| fault.state != HealthState::Unknown)
            .map(|fault| fault.kind)
            .collect();
        let (mut kinds, mut healed) = (BTreeSet::new(), 0);
        let mut sick: BTreeSet<(usize, usize)> = BTreeSet::new();
        for _ in 0..2_000 {
            let Change { node, gpu, health } = sickness.next(now);
            kinds.extend(health.causes.iter().map(|cause| cause.kind));
            if health.state == HealthState::Healthy {
                healed += 1;
                sick.remove(&(node, gpu));
            } else {
                sick.insert((node, gpu));
            }
            let nodes: BTreeSet<usize> = sick.iter().map(|(node, _)| *node).collect();
            assert_eq!(sickness.sick_nodes(), nodes.len());
        }
        assert_eq!(kinds, wanted);
        assert!(healed > 100, "{healed}");
    }
}
