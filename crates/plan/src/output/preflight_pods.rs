//! Pods that pull images before nodes move to a revision: those to create, and those that are no longer needed.

use std::collections::BTreeSet;

use gpu_operator_crd::{ClusterGpuPolicy, policy::Pool};

use crate::{
    manifests::preflight,
    output::{body::Body, write::Write},
    rollout::{Rollout, decision::PoolDecision},
    settings::Settings,
    world::{Role, World},
};

/// Returns the creation of the missing pods of a pool.
pub fn to_create(
    settings: &Settings,
    policy: &ClusterGpuPolicy,
    pool: Option<&Pool>,
    decision: &PoolDecision,
    world: &World,
) -> Vec<Write> {
    let missing = decision.preflight_pods.iter().filter(|(name, _)| !world.pods.contains_key(*name));
    let pod = |name: &String, wanted| Box::new(preflight::pod(settings, policy, pool, name.clone(), wanted));
    missing.map(|(name, wanted)| Write::new(name, Body::Pod(pod(name, wanted)))).collect()
}

/// Returns the deletion of pods that no pool needs any more. As long as an object cannot be parsed, the nodes that need them are not all
/// known.
pub fn to_delete(rollout: &Rollout<'_>, world: &World) -> Vec<Write> {
    if !world.unreadable_gpu_nodes.is_empty() || !world.unreadable_policies.is_empty() {
        return Vec::new();
    }
    let pools = rollout.policies.values().flat_map(|policy| policy.pools.values());
    let needed: BTreeSet<&String> = pools.flat_map(|pool| pool.preflight_pods.keys()).collect();
    let there = world.pods.values().filter(|pod| pod.role == Role::Preflight && !pod.is_leaving());
    there.filter(|pod| !needed.contains(&pod.name)).map(|pod| Write::delete_pod(pod)).collect()
}
