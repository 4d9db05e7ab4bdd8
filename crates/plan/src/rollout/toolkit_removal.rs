//! Toolkits that go. One that is just being entered into a runtime's configuration goes when it is through. Where NVIDIA's
//! runtime is the default, the container runtime is restarted as its toolkit's pod ends, and that is on one node of a group
//! at a time, however many are to lose it at once.

use std::{collections::BTreeMap, time::Duration};

use gpu_operator_crd::{keys, policy::Stage};
use k8s_openapi::jiff::Timestamp;

use crate::{
    rollout::toolkit_restart,
    settings::ASK_AGAIN,
    time::later,
    world::{NodeFacts, PodFacts, Role, Word, World},
};

/// How long a pod that should have ended is waited for all the same: one that is stuck must not keep a policy for ever.
const LATE: Duration = Duration::from_mins(2);

/// Whose turn it is to lose its toolkit.
#[derive(Debug)]
pub struct Removals<'w> {
    world: &'w World,
    /// Groups of which a pod is on its way out, and until when it is waited for; not looked at before the first node asks.
    busy: Option<BTreeMap<&'w str, Timestamp>>,
    /// Toolkits that are just being entered, by node; likewise.
    entering: Option<BTreeMap<&'w str, &'w str>>,
    now: Timestamp,
}

impl<'w> Removals<'w> {
    /// Before any node has asked.
    #[must_use]
    pub fn of(world: &'w World, now: Timestamp) -> Self {
        Self { world, busy: None, entering: None, now }
    }

    /// The group whose toolkit a node keeps for now, though none of ours is to stay on it, and when that is to be looked at
    /// again. A node that is not Ready ends no pod, and keeps none but one whose own doing that may be.
    pub fn kept_by(&mut self, node: &'w NodeFacts) -> Option<(&'w str, Timestamp)> {
        let group = node.labels.get(keys::TOOLKIT).map(Word::as_str)?;
        // It goes once it can take itself out again.
        let entering = self.entering.get_or_insert_with(|| entering(self.world, self.now));
        if entering.get(node.name.as_str()) == Some(&group) {
            return Some((group, later(self.now, ASK_AGAIN)));
        }
        if !node.ready || !toolkit_restart::is_at_end(self.world, group) {
            return None;
        }
        let busy = self.busy.get_or_insert_with(|| leaving(self.world, self.now));
        if let Some(until) = busy.get(group) {
            return Some((group, *until));
        }
        busy.insert(group, later(self.now, ASK_AGAIN));
        None
    }
}

/// The groups of toolkits that are just being entered into their nodes' container runtimes, by node.
fn entering(world: &World, now: Timestamp) -> BTreeMap<&str, &str> {
    let toolkits = world.pods.values().filter(|pod| pod.role == Role::Operand(Stage::Toolkit));
    let entering = toolkits.filter(|pod| toolkit_restart::is_entering(world, pod, now));
    entering.filter_map(|pod| Some((pod.node.as_str(), pod.group.as_deref()?))).collect()
}

/// Groups of which a pod is on its way out, and until when it is waited for.
fn leaving(world: &World, now: Timestamp) -> BTreeMap<&str, Timestamp> {
    let mut groups = BTreeMap::new();
    for pod in world.pods.values().filter(|pod| pod.role == Role::Operand(Stage::Toolkit)) {
        if let Some((group, until)) = leaves(world, pod, now).filter(|(_, until)| now < *until) {
            let known = groups.entry(group).or_insert(until);
            *known = until.max(*known);
        }
    }
    groups
}

/// The group of a pod on whose way out, or in, its node's runtime is restarted, and until when that is waited for.
fn leaves<'w>(world: &'w World, pod: &'w PodFacts, now: Timestamp) -> Option<(&'w str, Timestamp)> {
    let group = pod.group.as_deref()?;
    let node = world.nodes.get(pod.node.as_str())?;
    if let Some(by) = pod.gone_by {
        return Some((group, later(by, LATE)));
    }
    let called_for = node.labels.get(keys::TOOLKIT).is_some_and(|named| named == group);
    // The DaemonSet's controller is about to delete it, or it restarts the runtime on its way in.
    let busy = !called_for && node.ready || toolkit_restart::is_entering(world, pod, now);
    busy.then(|| (group, later(now, ASK_AGAIN)))
}
