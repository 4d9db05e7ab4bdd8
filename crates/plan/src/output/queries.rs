//! Queries for data that further decisions need and that is not in the observed state.

use std::collections::BTreeSet;

use gpu_operator_crd::NodeName;
use serde::Serialize;

/// The queries of a plan; once they are answered, the plan is computed again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Questions {
    /// Nodes whose pods are needed; answered in [`crate::world::World::gpu_pods`].
    pub gpu_pods: BTreeSet<NodeName>,
    /// Finished tests whose logs are needed; answered in [`crate::world::World::log_tails`].
    pub log_tails: BTreeSet<String>,
}

impl Questions {
    /// Returns whether there is no query.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { gpu_pods, log_tails } = self;
        gpu_pods.is_empty() && log_tails.is_empty()
    }

    /// Adds other queries.
    pub fn merge(&mut self, other: Self) {
        let Self { gpu_pods, log_tails } = other;
        self.gpu_pods.extend(gpu_pods);
        self.log_tails.extend(log_tails);
    }
}
