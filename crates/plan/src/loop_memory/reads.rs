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

// A probe that reads kubelet's pod resources reports when pods have ended; its list is confirmed every ten minutes, because some kubelets
// also list pods that have ended. Where no probe does, the pods of busy nodes are listed again after a minute. Both are done in rotation, so
// that a busy fleet costs no more requests than a small one.

/// In one pass.
pub const MAX_LISTS: usize = 32;
/// The maximum number of busy nodes, without those in an update, whose pods are listed in [`BUSY_TTL`].
const MAX_BUSY: usize = 30;
/// How long an answer is kept at least.
const BUSY_TTL: Duration = Duration::from_mins(1);
/// How many of them may be nodes whose probes report pods. The rest is for nodes on which the last pod has ended.
const MAX_CONFIRMED: usize = MAX_BUSY / 2;
/// How long a probe's list is believed.
const CONFIRMED_TTL: Duration = Duration::from_mins(10);
/// When the next pass lists the pods of nodes for which this one had no request left.
const NEXT_LIST: Uptime = Uptime::from_secs(1);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Busy {
    found: BTreeMap<NodeName, Found>,
    /// When the API server is next asked to confirm the pods that a probe reports.
    confirm: BTreeMap<NodeName, Uptime>,
    period: Uptime,
    /// The number of busy nodes found in the period.
    count: usize,
    /// The number of nodes in [`Self::confirm`] that were asked for in the period.
    confirmed: usize,
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
            (self.period, self.count, self.confirmed) = (now, 0, 0);
        }
        self.found.retain(|node, found| {
            let have_ended = reported(world, node) == Some(0) && now.saturating_sub(found.at) >= ASK_AGAIN;
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
        self.confirm(world, now);
        let known = self
            .found
            .iter()
            .filter(|(node, _)| !is_updated(world, node))
            .map(|(node, found)| (node.clone(), GpuPods { users: found.users.clone(), ..GpuPods::default() }));
        world.gpu_pods = known.collect();
    }

    /// Selects the reports that are not believed in this pass.
    fn confirm(&mut self, world: &mut World, now: Uptime) {
        let is_reported = |node: &&NodeName| reported(world, node).is_some_and(|pods| pods > 0);
        let busy = world.gpu_nodes.keys().filter(is_reported);
        self.confirm = busy.map(|node| (node.clone(), self.confirm.get(node).copied().unwrap_or(now))).collect();
        let most = if self.postponed > 0 { 0 } else { self.left().min(MAX_CONFIRMED - self.confirmed) };
        let mut due: Vec<_> = self.confirm.iter_mut().filter(|(_, at)| **at <= now).collect();
        due.sort_by_key(|(_, at)| **at);
        for (node, at) in due.into_iter().take(most) {
            self.found.remove(node);
            world.unconfirmed.insert(node.clone());
            self.confirmed += 1;
            *at = now + CONFIRMED_TTL;
        }
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
        let next = |left| if left > 0 { now + NEXT_LIST } else { self.period + BUSY_TTL };
        let listed = (self.postponed > 0).then(|| next(self.left()));
        let confirmed =
            self.confirm.values().min().map(|at| next(self.left().min(MAX_CONFIRMED - self.confirmed)).max(*at));
        listed.into_iter().chain(confirmed).min()
    }
}

pub fn is_updated(world: &World, node: &NodeName) -> bool {
    world.gpu_nodes.get(node).is_some_and(|gpu_node| gpu_node.spec.rollout.is_some())
}

fn uid_of_gpu_node(world: &World, node: &NodeName) -> Option<String> {
    world.gpu_nodes.get(node)?.metadata.uid.clone()
}

/// Returns the number of pods that have GPUs according to the probe.
fn reported(world: &World, node: &NodeName) -> Option<u32> {
    let gpu_node = world.gpu_nodes.get(node).filter(|gpu_node| gpu_node.spec.report_holders)?;
    Some(gpu_node.status.as_ref()?.report.as_ref()?.gpu_pods.as_ref()?.count)
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
