//! Which DaemonSets are applied or deleted, and whether one still is as it was applied.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_common::quantity::Amount;
use gpu_operator_crd::{GpuNodeSpec, gpunode::LastUpdate, keys, policy::Stage};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;
use serde_json::Value;

use crate::{
    assess::AssessedFleet,
    manifests::daemon_set,
    output::{
        body::{Body, DaemonSetWrite, Kind},
        write::{Plan, Write},
    },
    revision,
    settings::Settings,
    world::{DaemonSetFacts, World},
};

/// Adds the DaemonSets that are missing or differ, and the deletion of those that neither a node nor a policy needs, given the plan's
/// writes of labels.
pub fn add(plan: &mut Plan, settings: &Settings, fleet: &AssessedFleet<'_>) {
    let world = fleet.world;
    let mut needed: BTreeSet<String> = BTreeSet::new();
    for (pool, known) in fleet.variants.all() {
        let variant = &*known.variant;
        let is_applied = known.is_applied.replace(true);
        if is_applied {
            let names = variant.stages.iter().map(|(revision, spec)| revision::daemon_set_name(spec.stage, revision));
            needed.extend(names);
            continue;
        }
        for mut set in daemon_set::daemon_sets(settings, pool, variant) {
            let name = set.name_any();
            needed.insert(name.clone());
            let hash = revision::short(&set, 16);
            mark(&mut set, &hash);
            let present = world.daemon_sets.get(&name);
            let current = present.filter(|present| present.applied.as_ref() == Some(&hash));
            let whole = present.is_some_and(|present| present.added_by.is_some());
            let write = match current {
                None => true,
                Some(present) => whole || drifted(present, &set),
            };
            if write {
                known.is_applied.set(false);
                let generation = present.and_then(|present| present.generation);
                let write = DaemonSetWrite { set, whole, generation };
                plan.writes.push(Write::new(name, Body::DaemonSet(Box::new(write))));
            }
        }
    }
    let mut named: BTreeSet<(Stage, &str)> = BTreeSet::new();
    // The settled nodes have what their variants need.
    for (_, node) in fleet.unsettled(&world.nodes) {
        named.extend(revisions(|stage| Some(node.labels.get(stage.key())?.as_str())));
    }
    let labels = plan.writes.iter().filter_map(|write| match &write.body {
        Body::Labels(write) => Some(&write.labels),
        _ => None,
    });
    for labels in labels {
        named.extend(revisions(|stage| Some(labels.get(stage.key())?.as_str())));
    }
    // Labels that other users changed are restored, and a node that may have to be rolled back also needs its previous DaemonSets.
    for (_, gpu_node) in fleet.unsettled(&world.gpu_nodes) {
        let from = gpu_node.spec.rollout.as_ref().map(|rollout| &rollout.from);
        let last_update = gpu_node
            .spec
            .last_update
            .as_ref()
            .filter(|last_update| is_of_a_rollout(world, &gpu_node.spec, last_update));
        for recorded in gpu_node.spec.current.iter().chain(from).chain(last_update.map(|last_update| &last_update.from))
        {
            named.extend(revisions(|stage| Some(recorded.get(stage)?.as_str())));
        }
    }
    // So does a pool whose nodes have left, or that nodes join.
    let policies = world.policies.values().filter(|policy| policy.metadata.deletion_timestamp.is_none());
    let statuses = policies.filter_map(|policy| policy.status.as_ref());
    for target in statuses.flat_map(|status| &status.rollout.pools).flat_map(|pool| &pool.targets) {
        named.extend(revisions(|stage| Some(target.proven.get(stage)?.as_str())));
    }
    needed.extend(named.into_iter().map(|(stage, revision)| revision::daemon_set_name(stage, &revision.into())));
    // It is unknown what a policy needs that cannot be parsed, and which revisions the nodes have whose GpuNodes cannot be parsed.
    let may_be_needed = |set: &DaemonSetFacts| {
        let is_unreadable = |policy| world.unreadable_policies.contains(policy);
        !world.unreadable_gpu_nodes.is_empty() || set.policy.as_ref().is_some_and(is_unreadable)
    };
    let unneeded = world.daemon_sets.iter().filter(|(name, set)| !needed.contains(*name) && !may_be_needed(set));
    plan.writes.extend(unneeded.map(|(name, _)| Write::delete(Kind::DaemonSet, name)));
}

/// Whether the rollout that updated a node lasts, so that the node may return to what it had before.
fn is_of_a_rollout(world: &World, spec: &GpuNodeSpec, last_update: &LastUpdate) -> bool {
    let policy = spec.policy.as_ref().and_then(|policy| world.policies.get(policy)?.status.as_ref());
    let pools = policy.map(|status| status.rollout.pools.as_slice()).unwrap_or_default();
    pools
        .iter()
        .any(|known| spec.pool.as_ref() == Some(&known.pool) && known.since.as_ref() == Some(&last_update.rollout))
}

/// Annotates a DaemonSet and its pods with a hash, which shows whether a pod differs from its DaemonSet.
fn mark(set: &mut DaemonSet, hash: &str) {
    let mark = || BTreeMap::from([(keys::APPLIED.to_owned(), hash.to_owned())]);
    set.metadata.annotations.get_or_insert_default().append(&mut mark());
    if let Some(meta) = set.spec.as_mut().and_then(|spec| spec.template.metadata.as_mut()) {
        meta.annotations = Some(mark());
    }
}

fn revisions<'g>(of_stage: impl Fn(Stage) -> Option<&'g str>) -> impl Iterator<Item = (Stage, &'g str)> {
    Stage::ALL.into_iter().filter_map(move |stage| Some((stage, of_stage(stage)?)))
}

/// Whether another writer changed or removed a field. Additions are found by the managed fields: [`DaemonSetFacts::added_by`].
fn drifted(present: &DaemonSetFacts, wanted: &DaemonSet) -> bool {
    let (Some(present), Some(wanted)) = (&present.spec, &wanted.spec) else {
        return false;
    };
    match (serde_json::to_value(present), serde_json::to_value(wanted)) {
        (Ok(present), Ok(wanted)) => !holds(&present, &wanted, false),
        _ => false,
    }
}

/// The API server sets fields that `wanted` leaves open, and normalizes quantities.
fn holds(present: &Value, wanted: &Value, quantities: bool) -> bool {
    match (present, wanted) {
        (Value::Object(present), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            let quantities = quantities || matches!(key.as_str(), "limits" | "requests");
            present.get(key).map_or_else(|| is_empty(wanted), |present| holds(present, wanted, quantities))
        }),
        (Value::Array(present), Value::Array(wanted)) => {
            present.len() == wanted.len()
                && present.iter().zip(wanted).all(|(present, wanted)| holds(present, wanted, quantities))
        }
        (Value::String(present), Value::String(wanted)) if quantities => {
            present == wanted || present.parse::<Amount>().is_ok_and(|present| wanted.parse() == Ok(present))
        }
        _ => present == wanted,
    }
}

/// The API server omits such values.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(present: &str, wanted: &str) -> bool {
        let value = |yaml: &str| serde_yaml::from_str::<Value>(yaml).unwrap();
        holds(&value(present), &value(wanted), false)
    }

    #[test]
    fn fields_that_the_api_server_sets_or_omits_are_no_drift() {
        assert!(check("{a: 1, dnsPolicy: ClusterFirst}", "{a: 1}"));
        assert!(check("{env: [{name: A}]}", "{env: [{name: A, value: ''}]}"));
        assert!(check("{limits: {cpu: '1', memory: 1Gi}}", "{limits: {cpu: 1000m, memory: 1024Mi}}"));
        assert!(check(
            "{main: {resources: {limits: {memory: 1500M}}}}",
            "{main: {resources: {limits: {memory: 1.5G}}}}"
        ));
        assert!(check("{limits: {memory: 1P}}", "{limits: {memory: '1e15'}}"));
    }

    #[test]
    fn changed_or_removed_fields_are_drift() {
        assert!(!check("{a: 2}", "{a: 1}"));
        assert!(!check("{}", "{a: 1}"));
        assert!(!check("{}", "{hostPID: false}"));
        assert!(!check("{tolerations: []}", "{tolerations: [{operator: Exists}]}"));
        assert!(!check("{env: [{name: A}, {name: B}]}", "{env: [{name: A}]}"));
        assert!(!check("{limits: {memory: 2Gi}}", "{limits: {memory: 1Gi}}"));
        assert!(!check("{image: '1000m'}", "{image: '1'}"));
    }
}
