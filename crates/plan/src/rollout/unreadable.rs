//! Nodes whose GpuNode cannot be parsed. They are left unchanged, and because they may be in the middle of an update, they keep their
//! turn in their pool.

use std::sync::Arc;

use gpu_operator_crd::keys;

use crate::{
    assess::{assessment::Assessment, member::Member},
    inventory::membership::governs,
    world::{NodeFacts, World},
};

/// Returns the nodes of a pool whose GpuNodes cannot be parsed. They are not among its members; their labels name their pool.
pub fn nodes<'w>(members: &[Assessment<'_>], world: &'w World) -> impl Iterator<Item = &'w NodeFacts> {
    let pool = members.first().map(|Assessment { member: Member { policy, pool, .. }, .. }| (policy, pool));
    let is_of_pool = move |node: &&NodeFacts| {
        pool.is_some_and(|(policy, pool)| {
            node.labels.get(keys::POOL).is_some_and(|label| *label == *pool.as_str()) && governs(policy, node)
        })
    };
    let nodes = world.unreadable_gpu_nodes.iter().filter_map(|name| world.nodes.get(name));
    nodes.map(Arc::as_ref).filter(is_of_pool)
}
