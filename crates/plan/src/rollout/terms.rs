//! The terms of updates: what the settings of a policy and a pool mean for each step of an update, at the time of the plan.

use std::time::Duration;

use gpu_operator_crd::{
    ClusterGpuPolicy,
    gpunode::{DisruptionScope, Rollout, RolloutStep, StageRevisions},
    policy::{GpuPodsMode, Pool, RolloutStrategy},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::window::Windows;
use crate::{desired::effective_spec, settings::PROGRESS_DEADLINE, time::later, world::World};

/// The default of `gpuPods.timeout`.
const TIMEOUT: Duration = Duration::from_hours(4);

/// What applies to the updates of all nodes of a pool.
#[derive(Clone, Debug)]
pub struct Terms {
    /// How nodes of the pool are updated.
    pub strategy: RolloutStrategy,
    /// Whether the operator has the right to evict pods.
    may_evict: bool,
    /// Whether a CRD is of another version than the operator's.
    other_schema: bool,
    /// How long GPU pods are awaited on a cordoned node.
    pub timeout: Duration,
    /// How long every other step, and a preflight, may take.
    pub progress_deadline: Duration,
    /// When updates begin.
    pub windows: Windows,
    /// The time of the plan.
    pub now: Timestamp,
}

impl Terms {
    pub fn of(policy: &ClusterGpuPolicy, pool: Option<&Pool>, world: &World, may_evict: bool, now: Timestamp) -> Self {
        let strategy = effective_spec::rollout(policy, pool);
        Self {
            may_evict,
            other_schema: world.other_schema.is_some(),
            timeout: strategy.gpu_pods.timeout.map_or(TIMEOUT, Into::into),
            progress_deadline: policy.spec.readiness.progress_deadline.map_or(PROGRESS_DEADLINE, Into::into),
            windows: Windows::of(&strategy.windows, now),
            strategy,
            now,
        }
    }

    /// Returns whether nodes are cordoned while their GPU pods are awaited.
    pub fn cordon(&self) -> bool {
        self.mode() != GpuPodsMode::Leave
    }

    /// Returns whether GPU pods are evicted.
    pub fn evicts(&self) -> bool {
        self.mode() == GpuPodsMode::Evict && self.may_evict
    }

    /// Returns whether GPU pods should be evicted, and the operator does not have the right to.
    pub fn lacks_right(&self) -> bool {
        self.mode() == GpuPodsMode::Evict && !self.may_evict
    }

    /// Returns why no update begins until a user changes that, as a message.
    pub fn suspended(&self) -> Option<&'static str> {
        if self.other_schema {
            return Some(
                "update pending: a CRD is of another version than the operator; see condition Degraded of the policy",
            );
        }
        (self.strategy.paused == Some(true)).then_some("update pending: the rollout is paused by rollout.paused")
    }

    fn mode(&self) -> GpuPodsMode {
        self.strategy.gpu_pods.mode.unwrap_or_default()
    }

    /// Returns the record of an update of a node that enters this step now.
    pub fn enter(&self, step: RolloutStep, scope: DisruptionScope, from: StageRevisions) -> Rollout {
        let deadline = match step {
            // Without a cordon a node does not wait.
            RolloutStep::Await => self.cordon().then_some(self.timeout),
            RolloutStep::Release | RolloutStep::Replace => Some(self.progress_deadline),
        };
        let deadline = deadline.map(|after| Time(later(self.now, after)));
        Rollout { step, scope, from, since: Time(self.now), deadline }
    }

    /// Returns the record of an update that goes on with this step.
    pub fn go_on(&self, rollout: &Rollout, step: RolloutStep, is_another: bool) -> Rollout {
        if step == rollout.step && !is_another {
            return rollout.clone();
        }
        self.enter(step, rollout.scope, rollout.from.clone())
    }

    /// Returns the record of an update whose step begins again.
    pub fn again(&self, rollout: &Rollout) -> Rollout {
        self.go_on(rollout, rollout.step, true)
    }

    /// Returns whether the deadline of an update's step has passed.
    pub fn is_over(&self, rollout: &Rollout) -> bool {
        let deadline = rollout.deadline.as_ref().map(|deadline| deadline.0);
        // A record of an earlier version has none.
        let deadline = deadline
            .or_else(|| (rollout.step != RolloutStep::Await).then(|| later(rollout.since.0, self.progress_deadline)));
        deadline.is_some_and(|deadline| self.now >= deadline)
    }
}
