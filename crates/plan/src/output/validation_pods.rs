//! Pods that validate nodes: those to create, and those that are no longer needed.

use std::collections::BTreeSet;

use crate::{
    assess::{AssessedFleet, Assessment, member::Member, verdict::Verdict},
    manifests::validation,
    output::{body::Body, write::Write},
    rollout::decision::PoolDecision,
    settings::Settings,
    world::{PodFacts, Role},
};
use gpu_operator_crd::{
    Phase,
    gpunode::{Rollout, RolloutStep},
    reason::Reason,
};

/// Returns the creation of missing pods that members of a pool wait for. No test is started on a node whose update is about to begin:
/// it would be given up for the pod, which uses a GPU, and begin again once the pod is deleted.
pub fn to_create(settings: &Settings, members: &[Assessment<'_>], pool: &PoolDecision) -> Vec<Write> {
    let begins = |rollout: &Rollout| rollout.step == RolloutStep::Await;
    let stays = |member: &Member<'_>| {
        let decision = pool.nodes.get(&member.node.name);
        decision
            .is_some_and(|decision| decision.labels == member.have && !decision.rollout.as_ref().is_some_and(begins))
    };
    let awaits_test = |verdict: &Verdict| verdict.phase == Phase::Validation && verdict.reason != Reason::NodeNotReady;
    let due = members.iter().filter(|assessed| awaits_test(&assessed.verdict) && stays(&assessed.member));
    let due = due.filter_map(|assessed| Some((&assessed.member, assessed.validation.pod.clone()?)));
    due.filter(|(member, name)| member.pods.iter().all(|pod| pod.name != *name))
        .map(|(member, name)| Write::new(&name, Body::Pod(Box::new(validation::pod(settings, member, name.clone())))))
        .collect()
}

/// Returns the deletion of pods that are done, or that no node waits for any more.
pub fn to_delete(fleet: &AssessedFleet<'_>) -> Vec<Write> {
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
