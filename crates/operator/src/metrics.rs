//! Metrics: what the fleet is like, by policy and pool, and what the operator does. Labels are bounded: no node names.

use std::{collections::BTreeMap, sync::atomic::AtomicU64};

use gpu_operator_crd::ClusterGpuPolicyStatus;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use strum::IntoEnumIterator;

use crate::{
    apply::Written,
    diagnose::{Finding, Mistake},
};

#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
struct PoolState {
    policy: String,
    pool: String,
    state: &'static str,
}

#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
struct FindingLabels {
    reason: &'static str,
}

#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
struct WriteLabels {
    kind: &'static str,
    result: &'static str,
}

/// All metrics of the operator.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    nodes: Family<PoolState, Gauge>,
    gpus: Family<PoolState, Gauge>,
    pod_findings: Family<FindingLabels, Gauge>,
    writes: Family<WriteLabels, Counter>,
    passes: Counter,
    planning: Histogram,
    last_pass: Gauge<f64, AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("gpu_operator");
        let metrics = Self {
            nodes: Family::default(),
            gpus: Family::default(),
            pod_findings: Family::default(),
            writes: Family::default(),
            passes: Counter::default(),
            planning: Histogram::new([0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0]),
            last_pass: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register("pool_nodes", "Nodes of a pool by state", metrics.nodes.clone());
        registry.register("pool_gpus", "GPUs of a pool by state", metrics.gpus.clone());
        registry.register("pod_findings", "Mistakes in pods that stand, by reason", metrics.pod_findings.clone());
        registry.register("writes", "Writes to the API server by kind and result", metrics.writes.clone());
        registry.register("passes", "Passes over the fleet", metrics.passes.clone());
        registry.register_with_unit(
            "planning",
            "Time that planning for the fleet took",
            Unit::Seconds,
            metrics.planning.clone(),
        );
        registry.register("last_pass_timestamp_seconds", "When the last pass ended", metrics.last_pass.clone());
        Self { registry, ..metrics }
    }
}

impl Metrics {
    /// Shows the fleet as the policies' statuses tell it.
    pub fn show(&self, statuses: &BTreeMap<String, ClusterGpuPolicyStatus>) {
        // What is gone must not linger.
        self.nodes.clear();
        self.gpus.clear();
        for (policy, status) in statuses {
            for pool in &status.pools {
                let labels = |state| PoolState { policy: policy.clone(), pool: pool.name.clone(), state };
                let nodes = &pool.nodes;
                for (state, count) in [
                    ("ready", nodes.ready),
                    ("progressing", nodes.progressing),
                    ("failed", nodes.failed),
                    ("excluded", nodes.excluded),
                ] {
                    self.nodes.get_or_create(&labels(state)).set(count.into());
                }
                let gpus = &pool.gpus;
                for (state, count) in [
                    ("expected", gpus.expected),
                    ("allocatable", gpus.allocatable),
                    ("unhealthy", gpus.unhealthy),
                    ("degraded", gpus.degraded),
                    ("unknown", gpus.unknown),
                ] {
                    self.gpus.get_or_create(&labels(state)).set(count.into());
                }
            }
        }
    }

    /// Shows the mistakes in pods that stand.
    pub fn show_findings(&self, findings: &[Finding]) {
        for reason in Mistake::iter() {
            let standing = findings.iter().filter(|finding| finding.reason == reason).count();
            let labels = FindingLabels { reason: reason.as_str() };
            self.pod_findings.get_or_create(&labels).set(i64::try_from(standing).unwrap_or(i64::MAX));
        }
    }

    /// Counts writes.
    pub fn count(&self, written: &[Written]) {
        for write in written {
            let result = write.result.as_ref().err().map_or("Written", |error| error.class().as_str());
            self.writes.get_or_create(&WriteLabels { kind: write.target, result }).inc();
        }
    }

    /// Counts a pass, how long its planning took, and when it ended, in seconds since the epoch.
    pub fn passed(&self, planning: std::time::Duration, now: f64) {
        self.passes.inc();
        self.planning.observe(planning.as_secs_f64());
        self.last_pass.set(now);
    }

    /// The metrics as Prometheus reads them (OpenMetrics text).
    ///
    /// # Errors
    /// Never when writing to a string.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
