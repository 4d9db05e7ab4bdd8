//! Which pool of a policy governs a node.

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    ClusterGpuPolicy, PoolName,
    policy::{Pool, Selector},
};

use super::{node_labels::canonical, published_keys};
use crate::{catalogue::Catalogue, world::NodeLabels};

/// The pool of nodes of which only a label has said that they have GPUs.
pub(super) const UNKNOWN_MODEL: &str = "unknown-model";

/// The pool that governs a node.
#[derive(Clone, Debug)]
pub struct GoverningPool<'p> {
    /// Its name: that of the named pool, or of the node's model.
    pub name: PoolName,
    /// The named pool, unless the pool is the implicit one of a model.
    pub named: Option<&'p Pool>,
}

impl<'p> GoverningPool<'p> {
    /// Returns the pool of a policy that governs a node of this model, with these labels.
    pub fn of(catalogue: &Catalogue, policy: &'p ClusterGpuPolicy, model: Option<&str>, labels: &NodeLabels) -> Self {
        let named = named_pool(catalogue, policy, model, labels);
        let name = named.map_or_else(|| model.unwrap_or(UNKNOWN_MODEL).into(), |pool| pool.name.clone());
        Self { name, named }
    }
}

/// Whether a node with these labels is selected; without a selector every node is.
pub fn selects(selector: Option<&Selector>, labels: &NodeLabels) -> bool {
    selector.is_none_or(|selector| selector.matches(|key| labels.get(key).map(Interned::as_str)))
}

/// Returns the named pool that governs a node of this model, if any: the first that matches. A pool may use any cloud's
/// name of a model.
fn named_pool<'p>(
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
                    labels.get(key).map(Interned::as_str).filter(|_| !published_keys::comes_from(policy, key))
                })
            })
    })
}
