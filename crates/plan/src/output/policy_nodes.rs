use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, NodeName, PoolName, policy_status::RolloutStatus, reason::Reason,
};
use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;

use super::policy_conditions;
use crate::{
    assess::{AssessedFleet, Assessment, PolicyMembers},
    clock::Clock,
    inventory::{
        UnmanagedNode,
        membership::{self, PoolProblems, name_of},
        records,
    },
    note::Note,
    output::{
        body::{Body, LedgerWrite},
        events::policy_transitions,
        node,
        node_taints::Drained,
        one_off_pods, policy, runtime_classes, settled, summaries,
        unmanaged::Leavers,
        urgency,
        write::{self, Plan, Write},
    },
    rollout::{
        Rollout,
        ledger::{Content, recorded},
        window,
    },
    settings::{PROGRESS_DEADLINE, Settings},
    summary::{NodeSummary, Settled},
    world::{HeldWrite, World},
};

/// The same for all policies.
pub struct Context<'f> {
    pub settings: &'f Settings,
    pub fleet: &'f AssessedFleet<'f>,
    pub rollout: &'f Rollout<'f>,
    /// The models of nodes, including those that the catalogue lacks.
    pub models: BTreeSet<&'f str>,
    pub leavers: Leavers,
    /// With another installation of this operator.
    pub conflict: Option<HeldWrite>,
    pub clock: &'f Clock,
}

impl Context<'_> {
    fn held_writes(&self) -> impl Iterator<Item = &HeldWrite> {
        self.conflict.iter().chain(&self.fleet.world.held_writes)
    }
}

/// Returns the settled nodes.
pub fn add(plan: &mut Plan, context: &Context<'_>, policy: &ClusterGpuPolicy) -> Vec<Settled> {
    let Context { fleet, clock, .. } = *context;
    let world = fleet.world;
    let name = name_of(policy);
    let Some(members) = fleet.policies.get(&name) else { return Vec::new() };
    let rollout = context.rollout.policies.get(&name);
    let OfPools { counted, settled, halted, failed, not_drained, unmet } = add_pools(plan, context, policy, members);
    if let Some(rollout) = rollout {
        plan.writes.extend(rollout.ledger.as_ref().map(|content| ledger_write(policy, content)));
    }
    let mut pool_problems = unmet;
    pool_problems.extend(window::pool_problems(policy));
    pool_problems.extend(membership::pool_problems(fleet.ground.catalogue(), policy, &context.models));
    let conflict = fleet.ground.models.conflicts.get(&name).cloned();
    let invalid = conflict.or_else(|| window::problem(&policy.spec.rollout.windows));
    let finalizer = finalizer(policy, world, &context.leavers);
    plan.writes.extend(finalizer.map(|present| write::finalizer(policy, present)));
    let is_member = |node: &NodeName| counted.iter().any(|counted| counted.node == *node);
    let trouble = policy_conditions::Trouble {
        halted: &halted,
        waits_for: rollout.and_then(|rollout| rollout.waits_for.as_deref()),
        pool_problems: &pool_problems,
        invalid: invalid.as_deref(),
        held_write: context.held_writes().find(|held| held.concerns.is_of(&name, is_member)),
        jetson: if counted.is_empty() { first_jetson(policy, &fleet.unmanaged) } else { None },
        agent_refusal: fleet.ground.agent_refusal,
        not_drained: &not_drained,
    };
    let others = policy::Others {
        opted_out: members.opted_out,
        overlaps: members.overlaps.values().cloned().collect(),
        leaving: context.leavers.of(&name),
        failed_updates: u32::try_from(failed).unwrap_or(u32::MAX),
        published_keys: records::published_taint_keys(policy, world),
    };
    let status = policy::status(policy, &counted, others, trouble, clock);
    // The ledger is written apart.
    let written = policy.status.as_ref().map(without_ledger);
    let before = written.clone().unwrap_or_default();
    if before != status {
        let urgency = urgency::of_policy(written.as_ref(), &status);
        let events = policy_transitions(policy, &before, &status).collect();
        let write = Write::new(&name, Body::PolicyStatus(Box::new(status.clone())));
        plan.writes.push(Write { urgency, events, ..write });
    }
    plan.halted.insert(name.clone(), halted.into_keys().collect());
    plan.statuses.insert(name, status);
    settled
}

#[derive(Default)]
struct OfPools {
    counted: Vec<Arc<NodeSummary>>,
    settled: Vec<Settled>,
    halted: BTreeMap<PoolName, Note>,
    failed: usize,
    not_drained: Vec<String>,
    unmet: PoolProblems,
}

/// Adds the writes for the nodes of a policy.
fn add_pools(
    plan: &mut Plan,
    context: &Context<'_>,
    policy: &ClusterGpuPolicy,
    members: &PolicyMembers<'_>,
) -> OfPools {
    let Context { settings, fleet: AssessedFleet { world, .. }, clock, .. } = *context;
    let name = name_of(policy);
    let deadline = policy.spec.readiness.progress_deadline.map_or(PROGRESS_DEADLINE, Into::into);
    let deadline = SignedDuration::try_from(deadline).unwrap_or(SignedDuration::MAX);
    let unreadable = membership::unreadable_nodes(world);
    let governed = unreadable.iter().filter(|found| found.policy.as_ref() == Some(&name));
    let mut of_pools = OfPools { counted: governed.map(summaries::of_unreadable).collect(), ..OfPools::default() };
    let OfPools { counted, settled, halted, failed, not_drained, unmet } = &mut of_pools;
    let rollout = context.rollout.policies.get(&name);
    for (pool, members) in &members.pools {
        let Some(decision) = rollout.and_then(|rollout| rollout.pools.get(pool)) else { continue };
        let (of_pool, first) = (members.settings, counted.len());
        counted.extend(members.settled.iter().map(|settled| Arc::clone(&settled.summary)));
        *failed += decision.failed;
        plan.questions.gpu_pods.extend(decision.questions.iter().cloned());
        let recreated = decision.delete_pods.iter().filter_map(|name| world.pods.get(name));
        plan.writes.extend(recreated.map(|pod| Write::delete_pod(pod)));
        if decision.ask_again {
            clock.ask_again();
        }
        if let Some(why) = &decision.halted {
            halted.insert(pool.clone(), why.clone());
        }
        plan.writes.extend(one_off_pods::validation_pods_to_create(settings, &members.assessed, decision));
        plan.writes.extend(one_off_pods::preflight_pods_to_create(settings, of_pool, decision, world));
        plan.questions
            .log_tails
            .extend(members.assessed.iter().filter_map(|assessed| assessed.validation.log_of.clone()));
        unmet.extend(unmet_promise(&members.assessed).map(|problem| (pool.clone(), problem)));
        let drained = Drained::of(members);
        not_drained.extend(drained.message(pool));
        for assessed in &members.assessed {
            let Some(decision) = decision.nodes.get(&assessed.member.node.name) else { continue };
            let writes = plan.writes.len();
            let summary = node::add(plan, assessed, decision, &drained, deadline);
            if plan.writes.len() == writes {
                settled.extend(settled::of_member(assessed, decision, &summary, &world.daemon_sets));
            }
            clock.join(assessed.member.clock.next());
            counted.push(summary);
        }
        counted[first..].sort_by(|one, other| one.node.cmp(&other.node));
    }
    of_pools
}

/// For a pool whose number of GPUs no node has ever had: all of its nodes would lack some.
fn unmet_promise(members: &[Assessment<'_>]) -> Option<(Reason, String)> {
    let member = &members.iter().find(|assessed| assessed.member.most_in_pool.is_some())?.member;
    let (promised, most) = (member.pool.settings.promised_gpus()?, member.most_in_pool?);
    let message = format!(
        "gpusPerNode: {promised}, but no node of this pool has ever had more than {most} on its PCI bus; write gpusPerNode: {most}, or remove it"
    );
    Some((Reason::InvalidPolicy, message))
}

/// Returns the first Jetson that a policy selects.
fn first_jetson<'f>(policy: &ClusterGpuPolicy, unmanaged: &'f [UnmanagedNode<'_>]) -> Option<&'f NodeName> {
    let nodes = unmanaged.iter().map(|unmanaged| unmanaged.node);
    nodes.filter(|node| node.is_jetson()).find(|node| membership::governs(policy, node)).map(|node| &node.name)
}

pub fn ledger_write(policy: &ClusterGpuPolicy, content: &Content) -> Write {
    let (slots, pools) = recorded(policy);
    let write = LedgerWrite {
        slots: content.slots.clone(),
        pools: content.pools.clone(),
        uid: policy.uid().unwrap_or_default(),
        generation: policy.metadata.generation,
        before: (slots.to_vec(), pools.to_vec()),
    };
    Write::new(name_of(policy), Body::Ledger(Box::new(write)))
}

pub fn without_ledger(status: &ClusterGpuPolicyStatus) -> ClusterGpuPolicyStatus {
    let rollout = RolloutStatus { slots: Vec::new(), pools: Vec::new(), ..status.rollout.clone() };
    ClusterGpuPolicyStatus { rollout, ..status.clone() }
}

/// Returns whether to add (true) or remove (false) the finalizer. It is added before the first label is written, and removed last: no
/// GpuNode, DaemonSet or RuntimeClass refers to the policy any more, and no Node has a label, taint or condition of this operator.
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
