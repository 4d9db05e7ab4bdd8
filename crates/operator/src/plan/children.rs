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
    Plan, daemon_set, drift, driver,
    enroll::Sets,
    hash, judge,
    member::{groups_of, node_groups},
    toolkit::restart,
    variant,
};
use crate::{
    settings::Settings,
    world::{ContainerFacts, ContainerState, DaemonSetFacts, Exit, PodFacts, Role, World},
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

/// Pods to make anew, but for those that restart a container runtime: of these a pool has its turns.
#[must_use]
pub fn pods_to_renew(world: &World, now: Timestamp) -> BTreeSet<String> {
    let pods = world.pods.values().filter(|pod| is_to_be_renewed(world, pod, now));
    let restarts =
        |pod: &PodFacts| pod.role == Role::Operand(Stage::Toolkit) && restart::is_by(world, pod.group.as_deref());
    let undone = pods.filter(|pod| !restarts(pod)).map(Arc::as_ref);
    undone.chain(driver::holders_of_an_old_root(world)).map(|pod| pod.name.clone()).collect()
}

/// Whether nothing but a new pod can do what this one should.
#[must_use]
pub fn is_to_be_renewed(world: &World, pod: &PodFacts, now: Timestamp) -> bool {
    !pod.is_leaving() && (is_stuck(world, pod, now) || is_undone(pod))
}

/// Whether a pod cannot start and is of an older content than its DaemonSet: nothing but a new pod takes up the cure, and
/// there is nothing running in it that it could disturb.
fn is_stuck(world: &World, pod: &PodFacts, now: Timestamp) -> bool {
    let Role::Operand(stage) = pod.role else { return false };
    let set = pod.group.as_deref().and_then(|group| world.daemon_sets.get(&variant::daemon_set_name(stage, group)));
    let outdated = set.is_some_and(|set| set.applied.is_some() && set.applied.as_deref() != pod.applied.as_deref());
    outdated && !pod.has_started() && judge::hold_up(pod, now).is_some()
}

/// Whether a pod of the toolkit found its work undone: only what comes before a pod's main container does it again, and that
/// runs once in a pod's life. A pod looks no more than once a minute, so that this cannot go round in circles.
fn is_undone(pod: &PodFacts) -> bool {
    pod.role == Role::Operand(Stage::Toolkit) && pod.containers.iter().filter_map(last_exit).any(says_undone)
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
