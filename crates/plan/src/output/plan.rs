//! The plan: everything that must be written.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::take,
    sync::Arc,
};

use gpu_operator_crd::{ClusterGpuPolicyStatus, NodeName, PolicyName, PoolName};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::{events::Transition, write::Write};

/// Everything that must be written. If nothing must be done, it contains only what metrics show.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// The writes, in the order of their targets.
    pub writes: Vec<Write>,
    /// What must be known before more can be decided.
    pub questions: Questions,
    /// When to plan again even if nothing changes.
    pub check_again: Option<Timestamp>,
    /// Whether pods may be waiting for the end of a node's startup taint, which is removed by the first pass that finds it ready.
    #[serde(skip)]
    pub has_waiting_pods: bool,
    /// Every policy's desired status, written or not, for metrics.
    #[serde(skip)]
    pub statuses: BTreeMap<PolicyName, ClusterGpuPolicyStatus>,
    /// The pools whose rollout is halted, by policy, for metrics. A pool's status has one reason, which may be another.
    #[serde(skip)]
    pub halted: BTreeMap<PolicyName, BTreeSet<PoolName>>,
}

/// What a plan needs to know. Once it is known, the plan is computed again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Questions {
    /// Nodes whose pods are needed; answered in [`crate::world::World::gpu_pods`].
    pub gpu_pods: BTreeSet<NodeName>,
    /// Finished tests whose logs are needed; answered in [`crate::world::World::log_tails`].
    pub log_tails: BTreeSet<String>,
}

/// Writes in the order of their steps. Those of one step are independent of each other; a step begins when the one before has ended.
pub type Steps = Vec<Vec<Arc<Write>>>;

impl Plan {
    /// Returns whether there is nothing to write and nothing to query.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.questions.gpu_pods.is_empty() && self.questions.log_tails.is_empty()
    }

    /// Returns the transitions that its writes make public.
    pub fn events(&self) -> impl Iterator<Item = &Transition> {
        self.writes.iter().flat_map(|write| &write.events)
    }

    /// Records that the plan may be another one from this time on.
    pub fn check(&mut self, again: impl IntoIterator<Item = Timestamp>) {
        self.check_again = self.check_again.into_iter().chain(again).min();
    }

    /// Sorts the writes, each target once: a pod may have to be recreated for several reasons.
    pub fn sort(&mut self) {
        self.writes.sort_by(|one, other| one.target.cmp(&other.target));
        self.writes.dedup_by(|later, first| {
            let same = later.target == first.target;
            if same {
                first.events.append(&mut later.events);
            }
            same
        });
    }

    /// Takes the writes out of the plan, in the order of their steps.
    pub fn take_writes(&mut self) -> Steps {
        let mut steps: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for write in take(&mut self.writes) {
            steps.entry(write.step()).or_default().push(Arc::new(write));
        }
        steps.into_values().collect()
    }
}
