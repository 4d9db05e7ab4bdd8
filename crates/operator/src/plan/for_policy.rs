//! What a plan writes for one policy and its share of the fleet.

use std::collections::BTreeMap;

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, Phase, reason::Reason};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::{
    Plan,
    enroll::Share,
    for_node,
    judge::{self, Verdict},
    misfit::Misfits,
    policy, rollout,
    tell::ready_transition,
    validation,
};
use crate::{
    moment::later,
    settings::{ASK_AGAIN, PROGRESS_DEADLINE, Settings},
    world::World,
};

/// The policy's nodes, pool by pool, and its own status.
pub fn policy(
    plan: &mut Plan,
    settings: &Settings,
    policy: &ClusterGpuPolicy,
    share: Share<'_>,
    (misfits, models): (&Misfits, Option<&str>),
    world: &World,
    now: Timestamp,
) {
    let name = policy.name_any();
    let deadline = policy.spec.readiness.progress_deadline.map_or(PROGRESS_DEADLINE, Into::into);
    let deadline = SignedDuration::try_from(deadline).unwrap_or(SignedDuration::MAX);
    let mut counted = Vec::new();
    let mut halted = BTreeMap::new();
    for (pool, members) in &share.pools {
        let verdicts: Vec<_> = members.iter().map(|member| judge::judge(member, world, now)).collect();
        let judged: Vec<_> = members.iter().zip(&verdicts).collect();
        let decision = rollout::decide(&judged, world, now);
        plan.questions.gpu_pods.extend(decision.questions);
        plan.renew.extend(decision.renew);
        if decision.ask_again {
            plan.check_by(later(now, ASK_AGAIN));
        }
        if let Some(why) = decision.halted {
            halted.insert(pool.clone(), why);
        }
        let awaits_test =
            |verdict: &Verdict| verdict.phase == Phase::Validation && verdict.reason != Reason::NodeNotReady;
        let tests = judged.iter().map(|(member, verdict)| (*member, awaits_test(verdict)));
        plan.pods.extend(validation::pods_to_make(settings, tests));
        plan.questions.last_words.extend(members.iter().filter_map(|member| member.trial.asks.clone()));
        for (member, verdict) in judged {
            let Some(decision) = decision.nodes.get(&member.node.name) else {
                continue;
            };
            counted.push(for_node::member(plan, member, verdict, decision, deadline, now));
        }
    }
    finalizer(plan, policy, world);
    let trouble = policy::Trouble {
        halted: &halted,
        misfits,
        models,
        refused_writes: &world.refused_writes,
        probe_refusal: judge::probe_refusal(world),
    };
    let others = policy::Others { opted_out: share.opted_out, overlaps: share.overlaps.into_values().collect() };
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

/// On before the first label is written; off once nothing tells of the policy any more: no GpuNode and no DaemonSet,
/// which would otherwise go with it, from under nodes that another policy has taken over and not moved yet.
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
