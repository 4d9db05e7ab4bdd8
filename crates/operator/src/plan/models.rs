//! Models that policies add: the catalogue of one plan.

use std::collections::BTreeMap;

use gpu_operator_crd::ClusterGpuPolicy;
use kube::ResourceExt;

use crate::catalogue::Catalogue;

/// What policies add to the catalogue.
#[derive(Debug, Default)]
pub struct Added {
    /// The catalogue with it; none where nothing is added, as it mostly is.
    pub catalogue: Option<Catalogue>,
    /// What cannot be added, by policy.
    pub conflicts: BTreeMap<String, String>,
}

/// Adds the models of all policies, the oldest policy's first.
#[must_use]
pub fn added(catalogue: &Catalogue, policies: &[&ClusterGpuPolicy]) -> Added {
    let mut added = Added::default();
    for policy in policies {
        for model in &policy.spec.models {
            let catalogue = added.catalogue.get_or_insert_with(|| catalogue.clone());
            if let Err(conflict) = catalogue.add(model) {
                added.conflicts.entry(policy.name_any()).or_insert_with(|| conflict.to_string());
            }
        }
    }
    added
}
