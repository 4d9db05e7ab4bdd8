//! The writes for one policy and its nodes.

use std::collections::BTreeMap;

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode};
use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;

use super::policy_conditions;
use crate::{
    assess::{PolicyMembers, pod_failure},
    inventory::pool_checks,
    output::{
        context::Context, events::ready_transition, node, plan::Plan, policy, status_debounce::Pace, validation_pods,
    },
    settings::{ASK_AGAIN, PASSING, PROGRESS_DEADLINE},
    time::later,
    world::World,
};

/// Adds the writes for the policy's nodes, pool by pool, and for its status.
pub fn write(plan: &mut Plan, context: &Context<'_>, policy: &ClusterGpuPolicy) {
    let Context { settings, fleet, now, .. } = *context;
    let name = policy.name_any();
    let deadline = policy.spec.readiness.progress_deadline.map_or(PROGRESS_DEADLINE, Into::into);
    let pace = Pace {
        deadline: SignedDuration::try_from(deadline).unwrap_or(SignedDuration::MAX),
        debounce: context.debounce.get(name.as_str()).copied().unwrap_or(PASSING),
    };
    let none = PolicyMembers::default();
    let members = fleet.policies.get(name.as_str()).unwrap_or(&none);
    let rollout = context.rollout.get(name.as_str());
    let mut counted = Vec::new();
    let mut halted = BTreeMap::new();
    for (pool, members) in &members.pools {
        let Some(decision) = rollout.and_then(|rollout| rollout.get(pool.as_str())) else { continue };
        plan.questions.gpu_pods.extend(decision.questions.iter().cloned());
        plan.recreate.extend(decision.recreate.iter().cloned());
        if decision.ask_again {
            plan.check_by(later(now, ASK_AGAIN));
        }
        if let Some(why) = &decision.halted {
            halted.insert(pool.clone(), why.clone());
        }
        plan.pods.extend(validation_pods::to_create(settings, members));
        plan.questions.log_tails.extend(members.iter().filter_map(|assessed| assessed.validation.asks.clone()));
        for assessed in members {
            if let Some(decision) = decision.nodes.get(&assessed.member.node.name) {
                counted.push(node::write(plan, assessed, decision, pace, now));
            }
        }
    }
    let pool_problems = pool_checks::pool_problems(fleet.catalogue, policy, &context.models);
    finalizer(plan, policy, fleet.world);
    let trouble = policy_conditions::Trouble {
        halted: &halted,
        pool_problems: &pool_problems,
        models: context.model_conflicts.get(&name).map(String::as_str),
        refused_writes: &fleet.world.refused_writes,
        probe_refusal: pod_failure::probe_refusal(fleet.world),
    };
    let others =
        policy::Others { opted_out: members.opted_out, overlaps: members.overlaps.values().cloned().collect() };
    let status = policy::status(policy, &counted, others, trouble, now);
    let before = policy.status.clone().unwrap_or_default();
    if before != status {
        if policy::is_ready(&before) != policy::is_ready(&status) {
            plan.events.extend(ready_transition(policy, &status));
        }
        plan.policies.insert(name.clone(), status.clone());
    }
    plan.statuses.insert(name, status);
}

/// Adds the finalizer before the first label is written, and removes it once no GpuNode and no DaemonSet refers to the
/// policy. DaemonSets would otherwise be deleted with the policy, although nodes that another policy now governs may
/// still use them.
fn finalizer(plan: &mut Plan, policy: &ClusterGpuPolicy, world: &World) {
    let name = policy.name_any();
    let there = policy::has_finalizer(policy);
    if policy.metadata.deletion_timestamp.is_none() {
        if !there {
            plan.finalizers.insert(name, true);
        }
        return;
    }
    let governs = |gpu_node: &GpuNode| {
        gpu_node.spec.policy.as_ref() == Some(&name) && world.nodes.contains_key(&gpu_node.name_any())
    };
    let left = world.gpu_nodes.values().any(|gpu_node| governs(gpu_node))
        || world.daemon_sets.values().any(|set| set.policy.as_ref() == Some(&name));
    if there && !left {
        plan.finalizers.insert(name, false);
    }
}
