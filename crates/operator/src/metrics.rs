//! Metrics of the fleet, by policy and pool, and of the operator itself. Label values are bounded: no node names.

use std::{collections::BTreeMap, sync::atomic::AtomicU64};

use gpu_operator_crd::{ClusterGpuPolicyStatus, PolicyName};
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
struct EventLabels {
    result: &'static str,
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
    events: Family<EventLabels, Counter>,
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
            events: Family::default(),
            passes: Counter::default(),
            planning: Histogram::new([0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0]),
            last_pass: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register("pool_nodes", "Number of nodes per pool and state", metrics.nodes.clone());
        registry.register("pool_gpus", "Number of GPUs per pool and state", metrics.gpus.clone());
        registry.register(
            "pod_findings",
            "Number of current mistakes in pods, by reason",
            metrics.pod_findings.clone(),
        );
        registry.register("writes", "Number of writes to the API server, by kind and result", metrics.writes.clone());
        registry.register("events", "Number of Events, by result", metrics.events.clone());
        registry.register("passes", "Number of reconcile passes over the fleet", metrics.passes.clone());
        registry.register_with_unit(
            "planning",
            "Duration of planning for the fleet",
            Unit::Seconds,
            metrics.planning.clone(),
        );
        registry.register(
            "last_pass_timestamp_seconds",
            "Time at which the last pass ended, in seconds since the epoch",
            metrics.last_pass.clone(),
        );
        Self { registry, ..metrics }
    }
}

impl Metrics {
    /// Sets the metrics of the fleet from the policies' statuses.
    pub fn show(&self, statuses: &BTreeMap<PolicyName, ClusterGpuPolicyStatus>) {
        // Series of deleted policies and pools must not remain.
        self.nodes.clear();
        self.gpus.clear();
        for (policy, status) in statuses {
            for pool in &status.pools {
                let labels = |state| PoolState { policy: policy.to_string(), pool: pool.name.to_string(), state };
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

    /// Sets the number of current mistakes in pods.
    pub fn show_findings(&self, findings: &[Finding]) {
        for reason in Mistake::iter() {
            let standing = findings.iter().filter(|finding| finding.reason == reason).count();
            let labels = FindingLabels { reason: reason.as_str() };
            self.pod_findings.get_or_create(&labels).set(i64::try_from(standing).unwrap_or(i64::MAX));
        }
    }

    /// Counts writes by kind and result.
    pub fn count(&self, written: &[Written]) {
        for write in written {
            let result = write.result.as_ref().err().map_or("Written", |error| error.class().as_str());
            self.writes.get_or_create(&WriteLabels { kind: write.kind, result }).inc();
        }
    }

    /// Counts an Event: `Published`, `Failed`, or `Dropped` because too many were waiting.
    pub fn count_event(&self, result: &'static str) {
        self.events.get_or_create(&EventLabels { result }).inc();
    }

    /// Records a pass: the duration of its planning, and when it ended, in seconds since the epoch.
    pub fn passed(&self, planning: std::time::Duration, now: f64) {
        self.passes.inc();
        self.planning.observe(planning.as_secs_f64());
        self.last_pass.set(now);
    }

    /// Returns the metrics in the OpenMetrics text format.
    ///
    /// # Errors
    /// Writing to a string never fails.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
