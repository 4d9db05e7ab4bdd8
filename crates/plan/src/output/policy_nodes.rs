//! The writes for one policy and its nodes.

use std::collections::BTreeMap;

use gpu_operator_crd::{ClusterGpuPolicy, NodeName};
use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;

use super::policy_conditions;
use crate::{
    assess::{PolicyMembers, pod_failure},
    inventory::{membership::name_of, pool_checks, unreadable},
    output::{
        context::Context,
        counted::Counted,
        events::policy_transitions,
        leavers::Leavers,
        node,
        plan::{FinalizerWrite, Plan},
        policy, runtime_classes,
        status_debounce::StatusTiming,
        validation_pods,
    },
    settings::{ASK_AGAIN, PASSING, PROGRESS_DEADLINE},
    time::later,
    world::World,
};

/// Returns the writes for the policy's nodes, pool by pool, and for its status.
#[must_use]
pub fn writes(context: &Context<'_>, policy: &ClusterGpuPolicy) -> Plan {
    let mut plan = Plan::default();
    let Context { settings, fleet, now, .. } = *context;
    let name = name_of(policy);
    let deadline = policy.spec.readiness.progress_deadline.map_or(PROGRESS_DEADLINE, Into::into);
    let pace = StatusTiming {
        deadline: SignedDuration::try_from(deadline).unwrap_or(SignedDuration::MAX),
        debounce: context.debounce.get(&name).copied().unwrap_or(PASSING),
    };
    let no_members = PolicyMembers::default();
    let members = fleet.policies.get(&name).unwrap_or(&no_members);
    let rollout = context.rollout.get(&name);
    let unreadable = unreadable::nodes(fleet.world);
    let governed = unreadable.iter().filter(|found| found.policy.as_ref() == Some(&name));
    let mut counted: Vec<_> = governed.map(Counted::unreadable).collect();
    let mut halted = BTreeMap::new();
    for (pool, members) in &members.pools {
        let Some(decision) = rollout.and_then(|rollout| rollout.get(pool)) else { continue };
        plan.questions.gpu_pods.extend(decision.questions.iter().cloned());
        plan.delete_pods.extend(decision.delete_pods.iter().cloned());
        let again = decision.ask_again.then(|| later(now, ASK_AGAIN));
        plan.check_again = plan.check_again.into_iter().chain(again).min();
        if let Some(why) = &decision.halted {
            halted.insert(pool.clone(), why.clone());
        }
        plan.pods.extend(validation_pods::to_create(settings, members, decision));
        plan.questions.log_tails.extend(members.iter().filter_map(|assessed| assessed.validation.asks.clone()));
        for assessed in members {
            if let Some(decision) = decision.nodes.get(&assessed.member.node.name) {
                let (part, node) = node::writes(assessed, decision, pace, now);
                plan.merge(part);
                counted.push(node);
            }
        }
    }
    let pool_problems = pool_checks::pool_problems(fleet.catalogue, policy, &context.models);
    let finalizer = finalizer(policy, fleet.world, &context.leavers);
    let finalizer = finalizer.map(|present| FinalizerWrite { uid: policy.uid().unwrap_or_default(), present });
    plan.finalizers.extend(finalizer.map(|write| (name.clone(), write)));
    let is_member = |node: &NodeName| counted.iter().any(|counted| counted.node == node);
    let held_write = fleet.world.held_writes.iter().find(|held| held.concerns.is_of(&name, is_member));
    let trouble = policy_conditions::Trouble {
        halted: &halted,
        pool_problems: &pool_problems,
        models: context.model_conflicts.get(&name).map(String::as_str),
        held_write,
        probe_refusal: pod_failure::probe_refusal(fleet.world),
    };
    let others = policy::Others {
        opted_out: members.opted_out,
        overlaps: members.overlaps.values().cloned().collect(),
        leaving: context.leavers.of(&name),
    };
    let status = policy::status(policy, &counted, others, trouble, now);
    let before = policy.status.clone().unwrap_or_default();
    if before != status {
        plan.events.extend(policy_transitions(policy, &before, &status));
        plan.policies.insert(name.clone(), status.clone());
    }
    plan.halted.insert(name.clone(), halted.into_keys().collect());
    plan.statuses.insert(name, status);
    plan
}

/// Returns whether the finalizer must be added (true) or removed (false), if it must change: it is added before the first label
/// is written, and removed last of all. Nothing that was created for the policy is left then: no GpuNode, no DaemonSet and no
/// RuntimeClass refers to it, and no Node that it governed has a label, a taint or a condition of this operator.
fn finalizer(policy: &ClusterGpuPolicy, world: &World, leavers: &Leavers) -> Option<bool> {
    let name = name_of(policy);
    let present = policy::has_finalizer(policy);
    if policy.metadata.deletion_timestamp.is_none() {
        return (!present).then_some(true);
    }
    let left = runtime_classes::is_in_use(world, &name)
        || leavers.others
        || world.runtime_classes.values().any(|class| class.policies.contains(&name));
    (present && !left).then_some(false)
}
