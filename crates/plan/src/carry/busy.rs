//! Nodes on which pods use GPUs. A probe that reads kubelet's pod resources reports when they have ended. Where none does, the pods are
//! listed again after a minute, in rotation, so that a fleet whose nodes are all busy costs no more requests than a small one.

use std::{collections::BTreeMap, time::Duration};

use gpu_operator_crd::NodeName;

use crate::{
    settings::ASK_AGAIN,
    time::Uptime,
    world::{GpuPod, GpuPods, World},
};

/// The maximum number of nodes whose pods are listed in one pass.
pub const MAX_LISTS: usize = 32;
/// The maximum number of nodes without an update whose pods are listed in [`KEPT`] and that are busy.
const MAX_BUSY: usize = 30;
/// How long an answer is kept at least.
const KEPT: Duration = Duration::from_mins(1);
/// When the next pass lists the pods of nodes for which this one had no request left.
const SOON: Uptime = Uptime::from_secs(1);

/// The busy nodes that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Busy {
    found: BTreeMap<NodeName, Found>,
    /// When the current period of [`KEPT`] began.
    period: Uptime,
    /// The number of busy nodes that were found in it.
    count: usize,
    /// The number of nodes for which the last pass had no request left.
    postponed: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Found {
    at: Uptime,
    users: Vec<GpuPod>,
    /// The uid of the node's GpuNode at that moment. Another one is of another installation or another machine.
    gpu_node: Option<String>,
}

impl Busy {
    /// Adds the busy nodes to the world, without those whose pods should be listed again. That a node is idle must be true at the
    /// moment when its update begins, and is not remembered; nor is anything of a node that is being updated.
    pub fn report(&mut self, world: &mut World, now: Uptime) {
        if now.saturating_sub(self.period) >= KEPT {
            (self.period, self.count) = (now, 0);
        }
        self.found.retain(|node, found| {
            let have_ended = pods_have_ended(world, node) && now.saturating_sub(found.at) >= ASK_AGAIN;
            let is_same = uid_of_gpu_node(world, node) == found.gpu_node;
            world.nodes.contains_key(node) && is_same && !have_ended
        });
        let old = self.found.iter().filter(|(_, found)| now.saturating_sub(found.at) >= KEPT);
        let mut old: Vec<_> = old.map(|(node, found)| (found.at, node.clone())).collect();
        old.sort_unstable();
        // Nodes of which nothing is known come first.
        let most = if self.postponed > 0 { 0 } else { self.left() };
        for (_, node) in old.into_iter().take(most) {
            self.found.remove(&node);
        }
        let known = self
            .found
            .iter()
            .filter(|(node, _)| !is_updated(world, node))
            .map(|(node, found)| (node.clone(), GpuPods { users: found.users.clone(), ..GpuPods::default() }));
        world.gpu_pods = known.collect();
    }

    /// Returns the number of nodes without an update whose pods may still be listed.
    pub fn left(&self) -> usize {
        MAX_BUSY.saturating_sub(self.count)
    }

    /// Records the pods that were listed. A node that is being updated is asked for in each pass, and not counted.
    pub fn listed(&mut self, pods: &BTreeMap<NodeName, GpuPods>, world: &World, now: Uptime) {
        for (node, pods) in pods {
            if pods.is_held() {
                self.count += usize::from(!is_updated(world, node));
                let found = Found { at: now, users: pods.users.clone(), gpu_node: uid_of_gpu_node(world, node) };
                self.found.insert(node.clone(), found);
            } else {
                self.found.remove(node);
            }
        }
    }

    /// Records for how many nodes a pass had no request left.
    pub fn postpone(&mut self, nodes: usize) {
        self.postponed = nodes;
    }

    /// Returns when the next pass is due.
    pub fn next(&self, now: Uptime) -> Option<Uptime> {
        let next = if self.left() > 0 { now + SOON } else { self.period + KEPT };
        (self.postponed > 0).then_some(next)
    }
}

/// Returns whether a node is being updated.
pub fn is_updated(world: &World, node: &NodeName) -> bool {
    world.gpu_nodes.get(node).is_some_and(|gpu_node| gpu_node.spec.rollout.is_some())
}

fn uid_of_gpu_node(world: &World, node: &NodeName) -> Option<String> {
    world.gpu_nodes.get(node)?.metadata.uid.clone()
}

/// Returns whether the probe of a node reports that no pod has a GPU.
fn pods_have_ended(world: &World, node: &NodeName) -> bool {
    let gpu_node = world.gpu_nodes.get(node).filter(|gpu_node| gpu_node.spec.report_holders);
    let pods = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref()?.report.as_ref()?.gpu_pods.as_ref());
    pods.is_some_and(|pods| pods.count == 0)
}
