//! Which pool of a policy governs a node.

use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{Pool, Selector},
};

use super::{node_labels::canonical, published_keys};
use crate::{
    catalogue::Catalogue,
    world::{NodeLabels, Word},
};

/// Returns whether a node with these labels is selected; without a selector every node is.
#[must_use]
pub fn selects(selector: Option<&Selector>, labels: &NodeLabels) -> bool {
    selector.is_none_or(|selector| selector.matches(|key| labels.get(key).map(Word::as_str)))
}

/// Returns the named pool that governs a node of this model, if any: the first that matches. A pool may use any cloud's
/// name of a model.
#[must_use]
pub fn named_pool<'p>(
    catalogue: &Catalogue,
    policy: &'p ClusterGpuPolicy,
    model: Option<&str>,
    labels: &NodeLabels,
) -> Option<&'p Pool> {
    policy.spec.pools.iter().find(|pool| {
        let matches = &pool.matches;
        let of_model = |wanted: &String| Some(canonical(catalogue, wanted)).as_deref() == model;
        (matches.models.is_empty() || matches.models.iter().any(of_model))
            && matches.node_selector.as_ref().is_none_or(|selector| {
                selector.matches(|key| {
                    labels.get(key).map(Word::as_str).filter(|_| !published_keys::comes_from(policy, key))
                })
            })
    })
}
