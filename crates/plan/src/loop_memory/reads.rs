//! What is remembered of reads: nodes on which pods use GPUs, and validation pods whose logs could not be read.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpu_operator_crd::NodeName;

use crate::{
    settings::ASK_AGAIN,
    time::Uptime,
    world::{GpuPod, GpuPods, LogTails, World},
};

// A probe that reads kubelet's pod resources reports when pods have ended. Where none does, the pods of busy nodes are listed again after a
// minute, in rotation, so that a busy fleet costs no more requests than a small one.

/// In one pass.
pub const MAX_LISTS: usize = 32;
/// The maximum number of busy nodes, without those in an update, whose pods are listed in [`BUSY_TTL`].
const MAX_BUSY: usize = 30;
/// How long an answer is kept at least.
const BUSY_TTL: Duration = Duration::from_mins(1);
/// When the next pass lists the pods of nodes for which this one had no request left.
const NEXT_LIST: Uptime = Uptime::from_secs(1);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Busy {
    found: BTreeMap<NodeName, Found>,
    period: Uptime,
    /// The number of busy nodes found in the period.
    count: usize,
    postponed: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Found {
    at: Uptime,
    users: Vec<GpuPod>,
    /// Another GpuNode is of another installation or another machine.
    gpu_node: Option<String>,
}

impl Busy {
    /// Adds the cached GPU pods of busy nodes. Idle nodes and nodes in an update are never cached: both must be listed fresh.
    pub fn annotate(&mut self, world: &mut World, now: Uptime) {
        if now.saturating_sub(self.period) >= BUSY_TTL {
            (self.period, self.count) = (now, 0);
        }
        self.found.retain(|node, found| {
            let have_ended = pods_have_ended(world, node) && now.saturating_sub(found.at) >= ASK_AGAIN;
            let is_same = uid_of_gpu_node(world, node) == found.gpu_node;
            world.nodes.contains_key(node) && is_same && !have_ended
        });
        let old = self.found.iter().filter(|(_, found)| now.saturating_sub(found.at) >= BUSY_TTL);
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

    pub fn left(&self) -> usize {
        MAX_BUSY.saturating_sub(self.count)
    }

    /// A node that is being updated is listed in each pass, and not counted.
    pub fn listed(&mut self, pods: &BTreeMap<NodeName, GpuPods>, world: &World, now: Uptime) {
        for (node, pods) in pods {
            if pods.use_driver() {
                self.count += usize::from(!is_updated(world, node));
                let found = Found { at: now, users: pods.users.clone(), gpu_node: uid_of_gpu_node(world, node) };
                self.found.insert(node.clone(), found);
            } else {
                self.found.remove(node);
            }
        }
    }

    pub fn postpone(&mut self, nodes: usize) {
        self.postponed = nodes;
    }

    pub fn next(&self, now: Uptime) -> Option<Uptime> {
        let next = if self.left() > 0 { now + NEXT_LIST } else { self.period + BUSY_TTL };
        (self.postponed > 0).then_some(next)
    }
}

pub fn is_updated(world: &World, node: &NodeName) -> bool {
    world.gpu_nodes.get(node).is_some_and(|gpu_node| gpu_node.spec.rollout.is_some())
}

fn uid_of_gpu_node(world: &World, node: &NodeName) -> Option<String> {
    world.gpu_nodes.get(node)?.metadata.uid.clone()
}

fn pods_have_ended(world: &World, node: &NodeName) -> bool {
    let gpu_node = world.gpu_nodes.get(node).filter(|gpu_node| gpu_node.spec.report_holders);
    let pods = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref()?.report.as_ref()?.gpu_pods.as_ref());
    pods.is_some_and(|pods| pods.count == 0)
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Unread {
    failed: BTreeMap<String, Failed>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Failed {
    at: Uptime,
    error: String,
}

impl Unread {
    /// Returns the cached read errors of pods that are in back-off.
    pub fn errors(&self, pods: &BTreeSet<String>, now: Uptime) -> LogTails {
        let recent = |failed: &&Failed| now.saturating_sub(failed.at) < ASK_AGAIN;
        let error = |pod: &String| Some((pod.clone(), Err(self.failed.get(pod).filter(recent)?.error.clone())));
        pods.iter().filter_map(error).collect()
    }

    pub fn read(&mut self, tails: &LogTails, now: Uptime) {
        self.failed.retain(|_, failed| now.saturating_sub(failed.at) < ASK_AGAIN);
        for (pod, tail) in tails {
            if let Err(error) = tail {
                self.failed.insert(pod.clone(), Failed { at: now, error: error.clone() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_could_not_be_read_is_read_again_after_some_time() {
        let (mut unread, pods) = (Unread::default(), ["a".to_owned(), "b".to_owned()].into());
        assert!(unread.errors(&pods, Uptime::ZERO).is_empty());
        let tails = [("a".to_owned(), Err("no answer".to_owned())), ("b".to_owned(), Ok(String::new()))].into();
        unread.read(&tails, Uptime::ZERO);
        let soon = ASK_AGAIN.saturating_sub(Uptime::from_secs(1));
        assert_eq!(unread.errors(&pods, soon), [("a".to_owned(), Err("no answer".to_owned()))].into());
        assert!(unread.errors(&pods, ASK_AGAIN).is_empty());
        unread.read(&LogTails::new(), ASK_AGAIN);
        assert_eq!(unread, Unread::default());
    }
}
