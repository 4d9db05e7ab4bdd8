//! Nodes whose GpuNode cannot be parsed. They are left unchanged, but they belong to their policy: it counts them, and because they
//! may be in the middle of an update, they keep their turn in their pool, also after they have left their policy.

use std::sync::Arc;

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{ClusterGpuPolicy, PolicyName, PoolName, keys};

use super::{
    membership::{by_precedence, governs, name_of, opted_out},
    pools::UNKNOWN_MODEL,
};
use crate::world::{NodeFacts, World};

/// A node whose GpuNode cannot be parsed.
#[derive(Debug)]
pub struct UnreadableNode<'w> {
    pub node: &'w NodeFacts,
    /// The policy that governs it; `None` if it has left its policy, which only the GpuNode names.
    pub policy: Option<PolicyName>,
    /// Its pool, according to the label that this operator has set; without one, the pool of unknown models.
    pub pool: PoolName,
}

/// Returns the nodes whose GpuNodes cannot be parsed and that have a policy or the label of a pool.
pub fn nodes(world: &World) -> Vec<UnreadableNode<'_>> {
    if world.unreadable_gpu_nodes.is_empty() {
        return Vec::new();
    }
    // One that is being deleted waits for its nodes.
    let is_deleting = |policy: &&ClusterGpuPolicy| policy.metadata.deletion_timestamp.is_some();
    let policies: Vec<_> =
        by_precedence(world).into_iter().chain(world.policies.values().map(Arc::as_ref).filter(is_deleting)).collect();
    let of = |node| {
        let policy =
            policies.iter().find(|policy| governs(policy, node) && !opted_out(node)).map(|policy| name_of(policy));
        let pool = node.labels.get(keys::POOL).filter(|_| node.owned_labels.contains(keys::POOL));
        let pool = pool.map(Interned::as_str).or_else(|| policy.as_ref().map(|_| UNKNOWN_MODEL))?.into();
        Some(UnreadableNode { node, policy, pool })
    };
    world.unreadable_gpu_nodes.iter().filter_map(|name| of(world.nodes.get(name)?)).collect()
}

/// Returns those that may be in the middle of an update of a pool. One that has left its policy may be of any pool of that name.
pub fn of_pool<'w>(
    world: &'w World,
    policy: &ClusterGpuPolicy,
    pool: &PoolName,
) -> impl Iterator<Item = &'w NodeFacts> {
    let policy = name_of(policy);
    let is_of_pool = move |found: &UnreadableNode<'_>| {
        found.policy.as_ref().is_none_or(|name| *name == policy) && found.pool == *pool
    };
    nodes(world).into_iter().filter(is_of_pool).map(|found| found.node)
}
