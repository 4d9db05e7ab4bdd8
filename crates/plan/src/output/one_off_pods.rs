//! Pods that pull images or validate nodes: those to create, and those that are no longer needed.

use std::collections::BTreeSet;

use gpu_operator_crd::{
    Phase,
    gpunode::{self, RolloutStep},
    reason::Reason,
};

use crate::{
    assess::{AssessedFleet, Assessment, member::Member, verdict::Verdict},
    manifests::one_off,
    output::{body::Body, write::Write},
    pool_settings::PoolSettings,
    rollout::{Rollout, decision::PoolDecision},
    settings::Settings,
    world::{PodFacts, Role, World},
};

pub fn preflight_pods_to_create(
    settings: &Settings,
    pool: &PoolSettings<'_>,
    decision: &PoolDecision,
    world: &World,
) -> Vec<Write> {
    let missing = decision.preflight_pods.iter().filter(|(name, _)| world.pods.get(name).is_none());
    let pod = |name: &String, wanted| Box::new(one_off::preflight_pod(settings, pool, name.clone(), wanted));
    missing.map(|(name, wanted)| Write::new(name, Body::Pod(pod(name, wanted)))).collect()
}

/// As long as an object cannot be parsed, the nodes that need such pods are not all known.
pub fn preflight_pods_to_delete(rollout: &Rollout<'_>, world: &World) -> Vec<Write> {
    if !world.unreadable_gpu_nodes.is_empty() || !world.unreadable_policies.is_empty() {
        return Vec::new();
    }
    let pools = rollout.policies.values().flat_map(|policy| policy.pools.values());
    let needed: BTreeSet<&String> = pools.flat_map(|pool| pool.preflight_pods.keys()).collect();
    let there = world.pods.values().filter(|pod| pod.role == Role::Preflight && !pod.is_leaving());
    there.filter(|pod| !needed.contains(&pod.name)).map(|pod| Write::delete_pod(pod)).collect()
}

/// No test is started on a node whose update is about to begin: it would be given up for the pod, which uses a GPU, and begin again once
/// the pod is deleted.
pub fn validation_pods_to_create(settings: &Settings, members: &[Assessment<'_>], pool: &PoolDecision) -> Vec<Write> {
    let begins = |rollout: &gpunode::Rollout| rollout.step == RolloutStep::Await;
    let stays = |member: &Member<'_>| {
        let decision = pool.nodes.get(&member.node.name);
        decision
            .is_some_and(|decision| decision.labels == member.have && !decision.rollout.as_ref().is_some_and(begins))
    };
    let awaits_test = |verdict: &Verdict| verdict.phase == Phase::Validation && verdict.reason != Reason::NodeNotReady;
    let due = members.iter().filter(|assessed| awaits_test(&assessed.verdict) && stays(&assessed.member));
    let due = due.filter_map(|assessed| Some((&assessed.member, assessed.validation.pod.clone()?)));
    due.filter(|(member, name)| member.pods.iter().all(|pod| pod.name != *name))
        .map(|(member, name)| {
            Write::new(&name, Body::Pod(Box::new(one_off::validation_pod(settings, member, name.clone()))))
        })
        .collect()
}

/// Deletes pods that are done, or that no node waits for.
pub fn validation_pods_to_delete(fleet: &AssessedFleet<'_>) -> Vec<Write> {
    let world = fleet.world;
    let there: Vec<&PodFacts> = world
        .pods
        .values()
        .map(AsRef::as_ref)
        .filter(|pod| pod.role == Role::Validation && !pod.is_leaving())
        .collect();
    if there.is_empty() {
        return Vec::new();
    }
    let wanted: BTreeSet<&str> = fleet.members().filter_map(|assessed| assessed.validation.pod.as_deref()).collect();
    // A policy that cannot be parsed may also govern a node that has no GpuNode at the moment.
    let may_be_needed = |pod: &PodFacts| {
        let policy = world.gpu_nodes.get(&pod.node).and_then(|gpu_node| gpu_node.spec.policy.as_ref());
        world.is_unreadable(&pod.node) || policy.is_none() && !world.unreadable_policies.is_empty()
    };
    there
        .into_iter()
        .filter(|pod| !wanted.contains(pod.name.as_str()) && !may_be_needed(pod))
        .map(Write::delete_pod)
        .collect()
}
