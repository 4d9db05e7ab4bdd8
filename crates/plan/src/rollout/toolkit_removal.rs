//! Removal of toolkits. A toolkit that is being added to a runtime's configuration is removed only when that is complete. If
//! NVIDIA's runtime is the default, the container runtime is restarted when the toolkit's pod terminates; this happens on one
//! node of a group at a time, even if many nodes lose their toolkit at once.

use std::{collections::BTreeMap, time::Duration};

use gpu_operator_crd::{NodeName, Revision, keys, policy::Stage};
use k8s_openapi::jiff::Timestamp;

use crate::{
    rollout::toolkit_restart,
    settings::ASK_AGAIN,
    time::later,
    world::{Deletion, NodeFacts, PodFacts, Role, World},
};

/// How long a pod is waited for after it should have terminated: a stuck pod must not block the deletion of a policy.
const LATE: Duration = Duration::from_mins(2);

/// The toolkits that are being removed, which determine the node that loses its toolkit next.
#[derive(Debug)]
pub struct Removals<'w> {
    world: &'w World,
    /// Groups with a terminating pod, and until when it is waited for; computed for the first node that needs it.
    busy: Option<BTreeMap<Revision, Timestamp>>,
    /// The groups of toolkits that are being added to a runtime's configuration, by node; likewise.
    entering: Option<BTreeMap<&'w NodeName, &'w Revision>>,
    now: Timestamp,
}

impl<'w> Removals<'w> {
    /// Returns the removals before the first node.
    pub fn of(world: &'w World, now: Timestamp) -> Self {
        Self { world, busy: None, entering: None, now }
    }

    /// Returns the group whose toolkit a node that has it keeps for now, although it should be removed, and the time of the next
    /// check. On a node that is not Ready no pod terminates, so it keeps only a toolkit that is being added,
    /// which may be the cause.
    pub fn kept_by(&mut self, node: &'w NodeFacts, group: Option<&Revision>) -> Option<(Revision, Timestamp)> {
        let group = group?.clone();
        // It is removed once it can remove itself from the configuration.
        let entering = self.entering.get_or_insert_with(|| entering(self.world, self.now));
        if entering.get(&node.name) == Some(&&group) {
            return Some((group, later(self.now, ASK_AGAIN)));
        }
        if !node.ready || !toolkit_restart::is_at_end(self.world, &group) {
            return None;
        }
        let busy = self.busy.get_or_insert_with(|| leaving(self.world, self.now));
        if let Some(until) = busy.get(&group) {
            return Some((group, *until));
        }
        busy.insert(group, later(self.now, ASK_AGAIN));
        None
    }
}

/// Returns the groups of toolkits that are being added to the configuration of their nodes' container runtimes, by node.
fn entering(world: &World, now: Timestamp) -> BTreeMap<&NodeName, &Revision> {
    let toolkits = world.pods.values().filter(|pod| pod.role == Role::Operand(Stage::Toolkit));
    let entering = toolkits.filter(|pod| toolkit_restart::is_entering(world, pod, now));
    entering.filter_map(|pod| Some((&pod.node, pod.group.as_ref()?))).collect()
}

/// Returns the groups with a terminating pod, and until when it is waited for.
fn leaving(world: &World, now: Timestamp) -> BTreeMap<Revision, Timestamp> {
    let mut groups = BTreeMap::new();
    for pod in world.pods.values().filter(|pod| pod.role == Role::Operand(Stage::Toolkit)) {
        if let Some((group, until)) = leaves(world, pod, now).filter(|(_, until)| now < *until) {
            let known = groups.entry(group.clone()).or_insert(until);
            *known = until.max(*known);
        }
    }
    groups
}

/// Returns the group of a pod whose start or termination restarts the node's runtime, and until when that is waited for.
fn leaves<'w>(world: &'w World, pod: &'w PodFacts, now: Timestamp) -> Option<(&'w Revision, Timestamp)> {
    let group = pod.group.as_ref()?;
    let node = world.nodes.get(&pod.node)?;
    if let Some(Deletion { since, grace }) = &pod.deletion {
        return Some((group, later(since.local(), *grace + LATE)));
    }
    let called_for = node.labels.get(keys::TOOLKIT).is_some_and(|named| *group == named.as_str());
    // The DaemonSet controller is about to delete it, or it restarts the runtime while it starts.
    let busy = !called_for && node.ready || toolkit_restart::is_entering(world, pod, now);
    busy.then(|| (group, later(now, ASK_AGAIN)))
}
