//! What has to be known before more can be decided, and no mirror holds.

use std::collections::BTreeSet;

use serde::Serialize;

/// What is asked of the cluster; the plan is made anew with the answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Questions {
    /// Nodes whose pods have to be looked at; answered in [`crate::world::World::gpu_pods`].
    pub gpu_pods: BTreeSet<String>,
    /// Tests that have ended, whose logs have to be read; answered in [`crate::world::World::last_words`].
    pub last_words: BTreeSet<String>,
}

impl Questions {
    /// Whether nothing is asked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { gpu_pods, last_words } = self;
        gpu_pods.is_empty() && last_words.is_empty()
    }
}
