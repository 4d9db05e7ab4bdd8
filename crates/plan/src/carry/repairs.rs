//! Repairs of DaemonSets without effect: another component, such as an admission webhook, reverts them at once.

use std::{collections::BTreeMap, sync::Arc};

use gpu_operator_crd::keys;
use kube::ResourceExt;

use crate::{output::plan::Plan, world::DaemonSetFacts};

/// The generation that each DaemonSet kept although it was repaired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Repairs {
    futile: BTreeMap<String, i64>,
}

impl Repairs {
    /// Returns the DaemonSets whose repair had no effect, with their generation at the time.
    #[must_use]
    pub fn futile(&self) -> &BTreeMap<String, i64> {
        &self.futile
    }

    /// Records the DaemonSets that had been applied as planned, needed a repair, and have the same generation after it: another
    /// repair would not change them either. Returns the names of these.
    pub fn note_futile<'p>(
        &mut self,
        plan: &'p Plan,
        before: &BTreeMap<String, Arc<DaemonSetFacts>>,
        generation: impl Fn(&str) -> Option<i64>,
    ) -> Vec<&'p str> {
        self.futile.retain(|name, _| before.contains_key(name));
        let mut noted = Vec::new();
        for (name, write) in &plan.daemon_sets {
            let Some(before) = before.get(name) else { continue };
            let repaired = before.applied.as_ref() == write.set.annotations().get(keys::APPLIED);
            let generation = generation(name).filter(|now| repaired && Some(*now) == before.generation);
            if let Some(generation) = generation {
                self.futile.insert(name.clone(), generation);
                noted.push(name.as_str());
            }
        }
        noted
    }
}
