//! Children: which DaemonSets have to be applied or pruned, and which of their pods to be made anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gpu_operator_crd::{gpunode::Groups, keys, policy::Stage, reason::Reason};
use k8s_openapi::{api::apps::v1::DaemonSet, jiff::Timestamp};
use kube::ResourceExt;
use serde::Serialize;

use super::{
    Plan, daemon_set, drift,
    enroll::Sets,
    hash, judge,
    member::{groups_of, node_groups},
    toolkit::restart,
    variant,
};
use crate::{
    settings::Settings,
    world::{ContainerFacts, ContainerState, DaemonSetFacts, Exit, NodeFacts, PodFacts, Role, Word, World},
};

/// One write of a DaemonSet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DaemonSetWrite {
    /// What it should be.
    pub set: DaemonSet,
    /// Whether what others have added to it is to go as well: applying takes back only what is ours.
    pub whole: bool,
}

/// DaemonSets that are wanted and not there as they should be, and those that nobody needs.
pub fn plan(plan: &mut Plan, settings: &Settings, world: &World, sets: &Sets<'_>) {
    let mut needed: BTreeSet<String> = BTreeSet::new();
    for (policy, variant) in sets.all() {
        for mut set in daemon_set::daemon_sets(settings, policy, variant) {
            let name = set.name_any();
            needed.insert(name.clone());
            let hash = hash::short(&set, 16);
            mark(&mut set, &hash);
            let present = world.daemon_sets.get(&name);
            let current = present.filter(|present| present.applied.as_ref() == Some(&hash));
            let whole = present.is_some_and(|present| present.added_to);
            let write = match current {
                None => true,
                Some(present) => (whole || drift::drifted(present, &set)) && !is_futile(world, &name, present),
            };
            if write {
                plan.daemon_sets.insert(name, DaemonSetWrite { set, whole });
            }
        }
    }
    for node in world.nodes.values() {
        needed.extend(named_sets(&node_groups(node)));
    }
    for write in plan.labels.values() {
        needed.extend(named_sets(&groups_of(|key| write.labels.get(key).map(String::as_str))));
    }
    // A node that may have to go back names what it had, too.
    for rollout in world.gpu_nodes.values().filter_map(|gpu_node| gpu_node.spec.rollout.as_ref()) {
        needed.extend(named_sets(&rollout.from));
    }
    plan.prune = world.daemon_sets.keys().filter(|name| !needed.contains(*name)).cloned().collect();
}

/// Whether a repair has been tried and changed nothing: an admission webhook, say, that writes the same again.
fn is_futile(world: &World, name: &str, present: &DaemonSetFacts) -> bool {
    world.futile_repairs.get(name).is_some_and(|generation| present.generation == Some(*generation))
}

/// Marks a DaemonSet and its pods with what they are: a pod that is of another content than its DaemonSet now.
fn mark(set: &mut DaemonSet, hash: &str) {
    let mark = || BTreeMap::from([(keys::APPLIED.to_owned(), hash.to_owned())]);
    set.metadata.annotations.get_or_insert_default().append(&mut mark());
    if let Some(meta) = set.spec.as_mut().and_then(|spec| spec.template.metadata.as_mut()) {
        meta.annotations = Some(mark());
    }
}

/// Pods to make anew. Of those that restart a container runtime, one of a pool at a time, and none beside a toolkit that is
/// on its way to that or has just been called for.
pub fn renew(plan: &mut Plan, world: &World, now: Timestamp) {
    let pods: BTreeSet<String> = stuck_pods(world, now).into_iter().chain(undone_pods(world)).collect();
    let pod_of = |name: &String| world.pods.get(name);
    let node_of = |pod: &PodFacts| world.nodes.get(pod.node.as_str());
    let restarts = |pod: &PodFacts| {
        let of_toolkit = pod.role == Role::Operand(Stage::Toolkit);
        of_toolkit && node_of(pod).is_some_and(|node| restart::is_called_for(world, &node_groups(node)))
    };
    let (in_turn, at_once): (Vec<_>, Vec<_>) = pods.iter().filter_map(pod_of).partition(|pod| restarts(pod));
    plan.renew.extend(at_once.into_iter().map(|pod| pod.name.clone()));
    if in_turn.is_empty() {
        return;
    }
    let label = |node: &NodeFacts| node.labels.get(keys::TOOLKIT).cloned();
    let of_label = |pod: &&Arc<PodFacts>| {
        let toolkit = pod.role == Role::Operand(Stage::Toolkit);
        toolkit && node_of(pod).is_some_and(|node| label(node) == pod.group)
    };
    let toolkits: BTreeMap<&str, &PodFacts> =
        world.pods.values().filter(of_label).map(|pod| (pod.node.as_str(), pod.as_ref())).collect();
    let waiting: BTreeSet<&str> = in_turn.iter().map(|pod| pod.node.as_str()).collect();
    let busy = world.nodes.values().filter(|node| {
        let written = plan.labels.get(&node.name).and_then(|write| write.labels.get(keys::TOOLKIT));
        let called_for = written.is_some_and(|toolkit| label(node).is_none_or(|had| had != *toolkit));
        let pod = toolkits.get(node.name.as_str()).copied();
        let waits = waiting.contains(node.name.as_str());
        called_for || !waits && restart::is_on_its_way(world, node, &node_groups(node), pod, now)
    });
    let mut taken: BTreeSet<_> = busy.map(|node| pool_of(world, node)).collect();
    for pod in in_turn {
        if node_of(pod).is_some_and(|node| taken.insert(pool_of(world, node))) {
            plan.renew.insert(pod.name.clone());
        }
    }
}

/// The policy and the pool of a node.
fn pool_of<'w>(world: &'w World, node: &'w NodeFacts) -> (Option<&'w str>, Option<&'w str>) {
    let policy = world.gpu_nodes.get(&node.name).and_then(|gpu_node| gpu_node.spec.policy.as_deref());
    (policy, node.labels.get(keys::POOL).map(Word::as_str))
}

/// Pods that cannot start and are of an older content than their DaemonSet: nothing but a new pod takes up the cure,
/// and there is nothing running in them that it could disturb.
fn stuck_pods(world: &World, now: Timestamp) -> BTreeSet<String> {
    let pods = world.pods.values().filter(|pod| !pod.deleting && !pod.running() && !pod.has_started());
    let outdated = pods.filter(|pod| {
        let Role::Operand(stage) = pod.role else { return false };
        let set = pod.group.as_deref().and_then(|group| world.daemon_sets.get(&variant::daemon_set_name(stage, group)));
        set.is_some_and(|set| set.applied.is_some() && set.applied.as_deref() != pod.applied.as_deref())
    });
    outdated.filter(|pod| judge::hold_up(pod, now).is_some()).map(|pod| pod.name.clone()).collect()
}

/// Pods of the toolkit that found their work undone: only what comes before a pod's main container does it again, and that
/// runs once in a pod's life. A pod looks no more than once a minute, so that this cannot go round in circles.
fn undone_pods(world: &World) -> BTreeSet<String> {
    let pods = world.pods.values().filter(|pod| pod.role == Role::Operand(Stage::Toolkit) && !pod.deleting);
    let undone = pods.filter(|pod| pod.containers.iter().filter_map(last_exit).any(says_undone));
    undone.map(|pod| pod.name.clone()).collect()
}

fn last_exit(container: &ContainerFacts) -> Option<&Exit> {
    match &container.state {
        ContainerState::Ended(exit) => Some(exit),
        ContainerState::Waiting { .. } | ContainerState::Running(_) => container.last_failure.as_ref(),
    }
}

fn says_undone(exit: &Exit) -> bool {
    judge::named_reason(&exit.message).is_some_and(|(reason, _)| reason == Reason::RuntimeConfigDrifted)
}

/// The DaemonSets of these groups.
fn named_sets(groups: &Groups) -> impl Iterator<Item = String> {
    Stage::ALL.into_iter().filter_map(|stage| Some(variant::daemon_set_name(stage, variant::group(groups, stage)?)))
}
