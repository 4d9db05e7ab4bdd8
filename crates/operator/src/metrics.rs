//! Metrics of the fleet, by policy and pool, and of the operator itself. Label values are bounded: no node names.

use std::sync::{Mutex, PoisonError, atomic::AtomicU64};

use gpu_operator_common::version;
use gpu_operator_crd::policy_status::{PoolStatus, RolloutStatus};
use gpu_operator_plan::Plan;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

use crate::drive::Written;

#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
struct ConditionLabels {
    policy: String,
    condition: String,
    status: String,
    reason: String,
}

#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
struct PoolLabels {
    policy: String,
    pool: String,
}

#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
struct RolloutLabels {
    policy: String,
    state: &'static str,
}

#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
struct StateLabels {
    #[prometheus(flatten)]
    pool: PoolLabels,
    state: &'static str,
}

#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
struct AdmissionLabels {
    admission_policy: String,
}

#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
struct CrdLabels {
    crd: &'static str,
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

#[derive(Debug)]
pub struct Metrics {
    /// It is locked while the series of the fleet are replaced, so that no scrape misses one: an alert on it would start over.
    registry: Mutex<Registry>,
    leader: Gauge,
    conditions: Family<ConditionLabels, Gauge>,
    halted: Family<PoolLabels, Gauge>,
    rollout_nodes: Family<RolloutLabels, Gauge>,
    nodes: Family<StateLabels, Gauge>,
    expected_gpus: Family<PoolLabels, Gauge>,
    allocatable_gpus: Family<PoolLabels, Gauge>,
    gpus_with_problems: Family<StateLabels, Gauge>,
    admission_policies: Family<AdmissionLabels, Gauge>,
    crds: Family<CrdLabels, Gauge>,
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
            leader: Gauge::default(),
            conditions: Family::default(),
            halted: Family::default(),
            rollout_nodes: Family::default(),
            nodes: Family::default(),
            expected_gpus: Family::default(),
            allocatable_gpus: Family::default(),
            gpus_with_problems: Family::default(),
            admission_policies: Family::default(),
            crds: Family::default(),
            writes: Family::default(),
            events: Family::default(),
            passes: Counter::default(),
            planning: Histogram::new([0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0]),
            last_pass: Gauge::default(),
            registry: Mutex::default(),
        };
        metrics.register_fleet(&mut registry);
        metrics.register_operator(&mut registry);
        Self { registry: Mutex::new(registry), ..metrics }
    }
}

impl Metrics {
    fn register_fleet(&self, registry: &mut Registry) {
        registry.register(
            "policy_condition",
            "A condition of a policy with its status and reason, as labels. Always 1",
            self.conditions.clone(),
        );
        registry.register(
            "rollout_halted",
            "Whether the rollout of a pool is halted or rolled back",
            self.halted.clone(),
        );
        registry.register(
            "rollout_nodes",
            "Number of nodes of a policy in its rollouts, by state",
            self.rollout_nodes.clone(),
        );
        registry.register("pool_nodes", "Number of nodes per pool and state", self.nodes.clone());
        registry.register(
            "pool_gpus_expected",
            "Number of units that the nodes of a pool should offer",
            self.expected_gpus.clone(),
        );
        registry.register(
            "pool_gpus_allocatable",
            "Number of units of a pool that are allocatable",
            self.allocatable_gpus.clone(),
        );
        registry.register(
            "pool_gpus_with_problems",
            "Number of GPUs per pool that are not known to be healthy, by state",
            self.gpus_with_problems.clone(),
        );
    }

    fn register_operator(&self, registry: &mut Registry) {
        registry.register("build", "The version and the revision of the sources", Info::new(version::BUILD_LABELS));
        registry.register(
            "leader",
            "Whether this replica leads: only the leader writes, and has metrics of the fleet",
            self.leader.clone(),
        );
        registry.register(
            "admission_policy_enforced",
            "Whether a ValidatingAdmissionPolicy of the chart is enforced. Absent if that is not known",
            self.admission_policies.clone(),
        );
        registry.register(
            "crd_outdated",
            "Whether a CRD is older than this operator, which does not lead meanwhile",
            self.crds.clone(),
        );
        registry.register("writes", "Number of writes to the API server, by kind and result", self.writes.clone());
        registry.register("events", "Number of Events, by result", self.events.clone());
        registry.register("passes", "Number of reconcile passes over the fleet", self.passes.clone());
        registry.register_with_unit(
            "plan_duration",
            "Duration of planning for the fleet",
            Unit::Seconds,
            self.planning.clone(),
        );
        registry.register(
            "last_pass_timestamp_seconds",
            "Time at which the last pass ended, in seconds since the epoch",
            self.last_pass.clone(),
        );
    }

    pub fn show_leader(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    pub fn show(&self, plan: &Plan) {
        let _no_scrape = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        // Series of deleted policies and pools, and of previous conditions, must not remain.
        self.conditions.clear();
        for family in [&self.halted, &self.expected_gpus, &self.allocatable_gpus] {
            family.clear();
        }
        for family in [&self.nodes, &self.gpus_with_problems] {
            family.clear();
        }
        self.rollout_nodes.clear();
        for (policy, status) in &plan.statuses {
            for condition in &status.conditions {
                let labels = ConditionLabels {
                    policy: policy.to_string(),
                    condition: condition.type_.clone(),
                    status: condition.status.clone(),
                    reason: condition.reason.clone(),
                };
                self.conditions.get_or_create(&labels).set(1);
            }
            let RolloutStatus { done, in_progress, waiting, failed, .. } = status.rollout;
            for (state, nodes) in
                [("done", done), ("in_progress", in_progress), ("waiting", waiting), ("failed", failed)]
            {
                let labels = RolloutLabels { policy: policy.to_string(), state };
                self.rollout_nodes.get_or_create(&labels).set(nodes.into());
            }
            let halted = plan.halted.get(policy);
            for pool in &status.pools {
                let labels = PoolLabels { policy: policy.to_string(), pool: pool.name.to_string() };
                let is_halted = halted.is_some_and(|pools| pools.contains(&pool.name));
                self.halted.get_or_create(&labels).set(is_halted.into());
                self.show_pool(pool, &labels);
            }
        }
    }

    fn show_pool(&self, pool: &PoolStatus, labels: &PoolLabels) {
        let PoolStatus { nodes, gpus, .. } = pool;
        self.expected_gpus.get_or_create(labels).set(gpus.expected.into());
        self.allocatable_gpus.get_or_create(labels).set(gpus.allocatable.into());
        for (family, state, count) in [
            (&self.nodes, "ready", nodes.ready),
            (&self.nodes, "progressing", nodes.progressing),
            (&self.nodes, "failed", nodes.failed),
            (&self.nodes, "excluded", nodes.excluded),
            (&self.gpus_with_problems, "unhealthy", gpus.unhealthy),
            (&self.gpus_with_problems, "degraded", gpus.degraded),
            (&self.gpus_with_problems, "unknown", gpus.unknown),
        ] {
            family.get_or_create(&StateLabels { pool: labels.clone(), state }).set(count.into());
        }
    }

    pub fn show_admission_policy(&self, name: &str, is_enforced: Option<bool>) {
        let labels = AdmissionLabels { admission_policy: name.to_owned() };
        if let Some(is_enforced) = is_enforced {
            self.admission_policies.get_or_create(&labels).set(is_enforced.into());
        } else {
            self.admission_policies.remove(&labels);
        }
    }

    pub fn show_crd(&self, crd: &'static str, is_outdated: bool) {
        self.crds.get_or_create(&CrdLabels { crd }).set(is_outdated.into());
    }

    pub fn count(&self, written: &[Written]) {
        for written in written {
            let result = written.result.as_ref().err().map_or("Written", |error| error.class().as_str());
            self.writes.get_or_create(&WriteLabels { kind: written.write.target.kind.as_str(), result }).inc();
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

    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry.lock().unwrap_or_else(PoisonError::into_inner))?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::ClusterGpuPolicyStatus;
    use serde_json::{Value, json};

    use super::*;

    fn plan(status: Value, halted: &[&str]) -> Plan {
        let status: ClusterGpuPolicyStatus = serde_json::from_value(status).unwrap();
        let halted = halted.iter().map(|pool| (*pool).into()).collect();
        Plan { statuses: [("all".into(), status)].into(), halted: [("all".into(), halted)].into(), ..Plan::default() }
    }

    fn lines(metrics: &Metrics, name: &str) -> Vec<String> {
        let text = metrics.text().unwrap();
        text.lines()
            .filter_map(|line| line.strip_prefix("gpu_operator_")?.strip_prefix(name))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn a_condition_is_one_series_with_its_current_status_and_reason() {
        let metrics = Metrics::default();
        for (status, reason) in [("True", "AllGpusAllocatable"), ("False", "NodesNotReady")] {
            let ready = json!({
                "type": "Ready", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            metrics.show(&plan(json!({"conditions": [ready]}), &[]));
            let expected = format!(r#"{{policy="all",condition="Ready",status="{status}",reason="{reason}"}} 1"#);
            assert_eq!(lines(&metrics, "policy_condition"), [expected]);
        }
        metrics.show(&Plan::default());
        assert_eq!(lines(&metrics, "policy_condition"), [""; 0]);
    }

    #[test]
    fn the_nodes_of_a_rollout_are_shown_by_state() {
        let metrics = Metrics::default();
        metrics.show(&plan(json!({"rollout": {"total": 6, "done": 1, "inProgress": 2, "waiting": 3}}), &[]));
        let mut shown = lines(&metrics, "rollout_nodes");
        shown.sort();
        let state = |state, nodes: u32| format!(r#"{{policy="all",state="{state}"}} {nodes}"#);
        assert_eq!(shown, [state("done", 1), state("failed", 0), state("in_progress", 2), state("waiting", 3)]);
    }

    #[test]
    fn a_halted_pool_is_shown_as_such_whatever_its_reason() {
        let metrics = Metrics::default();
        let pools = json!([{"name": "h100", "reason": "DriverUnsupported"}, {"name": "p100"}]);
        metrics.show(&plan(json!({"pools": pools}), &["h100"]));
        let mut shown = lines(&metrics, "rollout_halted");
        shown.sort();
        assert_eq!(shown, [r#"{policy="all",pool="h100"} 1"#, r#"{policy="all",pool="p100"} 0"#]);
    }
}
