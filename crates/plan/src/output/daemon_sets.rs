//! Which DaemonSets must be applied or deleted.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{GpuNodeSpec, gpunode::Moved, keys, policy::Stage};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;

use crate::{
    assess::AssessedFleet,
    manifests::daemon_set,
    output::{
        body::{Body, DaemonSetWrite, Kind},
        drift,
        plan::Plan,
        write::Write,
    },
    revision,
    settings::Settings,
    world::{DaemonSetFacts, World},
};

/// Adds the DaemonSets that are missing or differ from the desired ones, and the deletion of those that neither a node nor a policy
/// needs any more, given the writes of labels in the plan.
pub fn add(plan: &mut Plan, settings: &Settings, fleet: &AssessedFleet<'_>) {
    let world = fleet.world;
    let mut needed: BTreeSet<String> = BTreeSet::new();
    for (policy, variant) in fleet.variants.all() {
        for mut set in daemon_set::daemon_sets(settings, policy, variant) {
            let name = set.name_any();
            needed.insert(name.clone());
            let hash = revision::short(&set, 16);
            mark(&mut set, &hash);
            let present = world.daemon_sets.get(&name);
            let current = present.filter(|present| present.applied.as_ref() == Some(&hash));
            let whole = present.is_some_and(|present| present.added_by.is_some());
            let write = match current {
                None => true,
                Some(present) => whole || drift::drifted(present, &set),
            };
            if write {
                let generation = present.and_then(|present| present.generation);
                let write = DaemonSetWrite { set, whole, generation };
                plan.writes.push(Write::new(name, Body::DaemonSet(Box::new(write))));
            }
        }
    }
    let mut named: BTreeSet<(Stage, &str)> = BTreeSet::new();
    for node in world.nodes.values() {
        named.extend(groups(|stage| Some(node.labels.get(stage.key())?.as_str())));
    }
    let labels = plan.writes.iter().filter_map(|write| match &write.body {
        Body::Labels(write) => Some(&write.labels),
        _ => None,
    });
    for labels in labels {
        named.extend(groups(|stage| Some(labels.get(stage.key())?.as_str())));
    }
    // Labels that other users changed are restored, and a node that may have to be rolled back also needs its previous DaemonSets.
    for gpu_node in world.gpu_nodes.values() {
        let from = gpu_node.spec.rollout.as_ref().map(|rollout| &rollout.from);
        let moved = gpu_node.spec.moved.as_ref().filter(|moved| is_of_a_rollout(world, &gpu_node.spec, moved));
        for recorded in gpu_node.spec.current.iter().chain(from).chain(moved.map(|moved| &moved.from)) {
            named.extend(groups(|stage| Some(recorded.get(stage)?.as_str())));
        }
    }
    needed.extend(named.into_iter().map(|(stage, group)| revision::daemon_set_name(stage, &group.into())));
    // It is unknown what a policy needs that cannot be parsed, and which groups the nodes have whose GpuNodes cannot be parsed.
    let may_be_needed = |set: &DaemonSetFacts| {
        let is_unreadable = |policy| world.unreadable_policies.contains(policy);
        !world.unreadable_gpu_nodes.is_empty() || set.policy.as_ref().is_some_and(is_unreadable)
    };
    let unneeded = world.daemon_sets.iter().filter(|(name, set)| !needed.contains(*name) && !may_be_needed(set));
    plan.writes.extend(unneeded.map(|(name, _)| Write::delete(Kind::DaemonSet, name)));
}

/// Returns whether the rollout lasts in which a node was updated, so that the node may return to what it had before.
fn is_of_a_rollout(world: &World, spec: &GpuNodeSpec, moved: &Moved) -> bool {
    let policy = spec.policy.as_ref().and_then(|policy| world.policies.get(policy)?.status.as_ref());
    let pools = policy.map(|status| status.rollout.pools.as_slice()).unwrap_or_default();
    pools.iter().any(|known| spec.pool.as_ref() == Some(&known.pool) && known.since.as_ref() == Some(&moved.rollout))
}

/// Annotates a DaemonSet and its pods with a hash of their content, which shows whether a pod differs from its
/// DaemonSet.
fn mark(set: &mut DaemonSet, hash: &str) {
    let mark = || BTreeMap::from([(keys::APPLIED.to_owned(), hash.to_owned())]);
    set.metadata.annotations.get_or_insert_default().append(&mut mark());
    if let Some(meta) = set.spec.as_mut().and_then(|spec| spec.template.metadata.as_mut()) {
        meta.annotations = Some(mark());
    }
}

fn groups<'g>(of_stage: impl Fn(Stage) -> Option<&'g str>) -> impl Iterator<Item = (Stage, &'g str)> {
    Stage::ALL.into_iter().filter_map(move |stage| Some((stage, of_stage(stage)?)))
}
