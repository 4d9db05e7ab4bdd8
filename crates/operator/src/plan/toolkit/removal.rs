//! Toolkits that go: where NVIDIA's runtime is the default, the container runtime is restarted as its toolkit's pod ends, and
//! that is on one node of a group at a time, however many are to lose it at once.

use std::collections::BTreeSet;

use gpu_operator_crd::{keys, policy::Stage};

use super::restart;
use crate::world::{NodeFacts, Role, Word, World};

/// Whose turn it is to lose its toolkit.
#[derive(Debug)]
pub struct Removals<'w> {
    world: &'w World,
    /// Groups of which a pod is on its way out.
    busy: BTreeSet<&'w str>,
}

impl<'w> Removals<'w> {
    /// Who is losing it already. A node that is not Ready does not end its pods, and keeps nobody waiting.
    #[must_use]
    pub fn of(world: &'w World) -> Self {
        let toolkits = world.pods.values().filter(|pod| pod.role == Role::Operand(Stage::Toolkit));
        let leaving = toolkits.filter_map(|pod| {
            let group = pod.group.as_deref()?;
            let node = world.nodes.get(pod.node.as_str()).filter(|node| node.ready)?;
            let stays = !pod.deleting && node.labels.get(keys::TOOLKIT).is_some_and(|named| named == group);
            (!stays).then_some(group)
        });
        Self { world, busy: leaving.collect() }
    }

    /// The group whose toolkit a node keeps for now, though none of ours is to stay on it.
    pub fn kept_by(&mut self, node: &'w NodeFacts) -> Option<&'w str> {
        let group = node.labels.get(keys::TOOLKIT).map(Word::as_str).filter(|_| node.ready)?;
        let kept = restart::is_at_end(self.world, group) && !self.busy.insert(group);
        kept.then_some(group)
    }
}
