//! Nodes on which pods use GPUs. Their pods are listed again in rotation and not in every pass, so that a fleet whose nodes are all
//! busy costs no more requests than a small one.

use std::collections::BTreeMap;

use gpu_operator_crd::NodeName;

use crate::{
    settings::ASK_AGAIN,
    time::Uptime,
    world::{GpuPod, GpuPods, World},
};

/// The maximum number of nodes whose pods are listed in one pass, and of busy nodes whose pods are listed again within
/// [`ASK_AGAIN`].
pub const MAX_LISTS: usize = 32;
/// When the next pass lists the pods of nodes for which this one had no request left.
const SOON: Uptime = Uptime::from_secs(1);

/// The busy nodes that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Busy {
    found: BTreeMap<NodeName, Found>,
    /// When pods of busy nodes were last listed again.
    renewed: Uptime,
    /// The number of nodes for which the last pass had no request left.
    postponed: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Found {
    at: Uptime,
    users: Vec<GpuPod>,
}

impl Busy {
    /// Adds the busy nodes to the world, without those whose pods should be listed again. That a node is idle must be true at the
    /// moment when its update begins, and is not remembered; nor is anything of a node that is being updated.
    pub fn report(&mut self, world: &mut World, now: Uptime) {
        self.found.retain(|node, _| world.nodes.contains_key(node));
        if now.saturating_sub(self.renewed) >= ASK_AGAIN {
            let old = self.found.iter().filter(|(_, found)| now.saturating_sub(found.at) >= ASK_AGAIN);
            let mut old: Vec<_> = old.map(|(node, found)| (found.at, node.clone())).collect();
            old.sort_unstable();
            for (_, node) in old.into_iter().take(MAX_LISTS.saturating_sub(self.postponed)) {
                self.found.remove(&node);
                self.renewed = now;
            }
        }
        let is_updated = |node| world.gpu_nodes.get(node).is_some_and(|gpu_node| gpu_node.spec.rollout.is_some());
        let known = self
            .found
            .iter()
            .filter(|(node, _)| !is_updated(*node))
            .map(|(node, found)| (node.clone(), GpuPods { users: found.users.clone(), ..GpuPods::default() }));
        world.gpu_pods = known.collect();
    }

    /// Records the pods that were listed.
    pub fn listed(&mut self, pods: &BTreeMap<NodeName, GpuPods>, now: Uptime) {
        for (node, pods) in pods {
            if pods.holders().next().is_none() {
                self.found.remove(node);
            } else {
                self.found.insert(node.clone(), Found { at: now, users: pods.users.clone() });
            }
        }
    }

    /// Records for how many nodes a pass had no request left.
    pub fn postpone(&mut self, nodes: usize) {
        self.postponed = nodes;
    }

    /// Returns when the next pass is due.
    #[must_use]
    pub fn next(&self, now: Uptime) -> Option<Uptime> {
        (self.postponed > 0).then(|| now + SOON)
    }
}
