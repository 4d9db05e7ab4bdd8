//! The rollout of a pool: which groups each node's labels should name. A node without groups gets the wanted ones immediately.
//! Nodes with other groups are updated one at a time, cordoned ones first, and a node that fails during its update halts its pool.

use std::fmt;

use gpu_operator_crd::{
    NodeName,
    gpunode::{Rollout, RolloutStep, StageRevisions},
    policy::Stage,
    reason::Reason,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use crate::{
    assess::{Assessment, holders, member::Member},
    inventory::{membership::name_of, report::belongs_to, unreadable},
    note::Note,
    revision,
    rollout::{
        decision::{ASK_AT_ONCE, Decision, PoolDecision, halts},
        mig::restore_layouts,
        release::{must_release, waits_for_holders},
        runtime_restart::RuntimeTurn,
        update::{
            begin, check, continue_update, has_nothing_else, in_use, keep_or_restore, moves_driver, needs_idle_gpus,
            settle,
        },
    },
    world::World,
};

/// The node of a pool for which the others have to wait.
enum Turn {
    /// It is being updated.
    Moving(NodeName),
    /// Its update may begin at any time.
    Unanswered(NodeName),
    /// Its GpuNode cannot be parsed, so it may be in the middle of an update.
    Unreadable(NodeName),
    /// It has left the pool in the middle of an update, which goes on if it comes back.
    Left(NodeName),
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moving(node) => write!(f, "node {node} of this pool is being updated"),
            Self::Unanswered(node) => {
                write!(f, "the API server has not answered whether the update of node {node} of this pool has begun")
            }
            Self::Unreadable(node) => write!(
                f,
                "GpuNode {node} of this pool cannot be parsed, so its node may be in the middle of an update; upgrade the operator to the version that wrote it"
            ),
            Self::Left(node) => write!(f, "node {node} has left this pool in the middle of an update"),
        }
    }
}

/// Returns the decisions for the members of one pool, in the order of their names.
#[must_use]
pub fn decide(members: &[Assessment<'_>], world: &World, now: Timestamp) -> PoolDecision {
    let mut pool = PoolDecision::default();
    let mut runtime = RuntimeTurn::of(members, world, now);
    let mut waiting = Vec::new();
    for member in members.iter().map(|assessed| &assessed.member).filter(|member| waits_for_holders(member, now)) {
        // The probe releases the driver only if the driver's container can start then.
        pool.ask_again |= member.gpu_pods.is_some_and(|pods| !pods.holders.is_empty());
        if member.gpu_pods.is_none() && pool.questions.len() < ASK_AT_ONCE {
            pool.questions.insert(member.node.name.clone());
        }
    }
    for Assessment { member, verdict, .. } in members {
        let want = member.want();
        let decision = match (want, member.rollout()) {
            // The wanted groups are unknown: the node keeps its groups, or gets its previous ones back.
            (None, rollout) => keep_or_restore(member, rollout),
            (Some(want), None) if has_nothing_else(&member.have, &want) => {
                in_turn(settle(member, want, now), member, &mut runtime)
            }
            (Some(want), rollout) if !daemon_sets_exist(&want, world) => {
                let message = "update pending: the DaemonSets of the new revision do not exist yet";
                Decision { note: Some(Note::new(Reason::RolloutPending, message)), ..keep_or_restore(member, rollout) }
            }
            (Some(want), Some(rollout)) => {
                let decision = continue_update(member, verdict, want, rollout, now, &mut pool);
                in_turn(decision, member, &mut runtime)
            }
            (Some(_), None) => {
                waiting.push(member);
                continue;
            }
        };
        if decision.rollout.is_some() && pool.halted.is_none() {
            pool.halted = halts(member, verdict);
        }
        pool.nodes.insert(member.node.name.clone(), decision);
    }
    let moving = pool.nodes.iter().find(|(_, decision)| decision.rollout.is_some());
    let mut unanswered = members.iter().map(|assessed| &assessed.member.node.name);
    let unanswered = unanswered.find(|name| world.unanswered_updates.contains(*name));
    let turn = moving.map(|(name, _)| Turn::Moving(name.clone()));
    let mut turn = turn.or_else(|| Some(Turn::Unanswered(unanswered?.clone()))).or_else(|| {
        let member = &members.first()?.member;
        let node = unreadable::of_pool(world, member.policy, &member.pool.name).next()?;
        Some(Turn::Unreadable(node.name.clone()))
    });
    if turn.is_none() && !waiting.is_empty() {
        turn = left_in_an_update(members, world).map(Turn::Left);
    }
    // A cordoned node gets no new GPU pods, so it can be updated in a fleet that is otherwise always busy.
    waiting.sort_by_key(|member| !member.node.cordoned);
    for member in waiting {
        let decision = take_turn(member, now, &mut turn, &mut pool);
        let decision = in_turn(decision, member, &mut runtime);
        pool.nodes.insert(member.node.name.clone(), decision);
    }
    pool.ask_again |= runtime.waits_for_entry;
    pool.delete_pods
        .extend(members.iter().filter_map(|assessed| runtime.pod_to_recreate(&assessed.member, world, now)));
    pool.halted = pool.halted.or(runtime.halted());
    if turn.is_none() {
        restore_layouts(members, now, &mut pool);
    }
    pool
}

/// Returns a node that has left the pool of these members in the middle of an update.
fn left_in_an_update(members: &[Assessment<'_>], world: &World) -> Option<NodeName> {
    let first = &members.first()?.member;
    let (policy, pool) = (name_of(first.policy), &first.pool.name);
    let mut recorded = world.gpu_nodes.iter().filter(|(name, gpu_node)| {
        let spec = &gpu_node.spec;
        let is_of_pool = spec.policy.as_ref() == Some(&policy) && spec.pool.as_ref() == Some(pool);
        let is_member = || members.iter().any(|assessed| assessed.member.node.name == **name);
        let exists = || world.nodes.get(*name).is_some_and(|node| belongs_to(gpu_node, node));
        spec.rollout.is_some() && is_of_pool && exists() && !is_member()
    });
    recorded.next().map(|(name, _)| name.clone())
}

/// Returns whether the DaemonSets of these groups exist. A running revision is not given up for one that the API server
/// rejects.
fn daemon_sets_exist(want: &StageRevisions, world: &World) -> bool {
    Stage::ALL.into_iter().all(|stage| {
        let name = want.get(stage).map(|group| revision::daemon_set_name(stage, group));
        name.is_none_or(|name| world.daemon_sets.contains_key(&name))
    })
}

/// Returns the part of a decision that applies while the node's container runtime may not be restarted.
fn in_turn(decision: Decision, member: &Member<'_>, runtime: &mut RuntimeTurn) -> Decision {
    let (labels, note) = runtime.allowed(member, decision.labels);
    Decision { labels, note: decision.note.or(note), ..decision }
}

/// Returns the decision for a node whose revision is not the wanted one and that is not being updated.
fn take_turn(member: &Member<'_>, now: Timestamp, turn: &mut Option<Turn>, pool: &mut PoolDecision) -> Decision {
    let Some(want) = member.want() else {
        return keep_or_restore(member, None);
    };
    let driver_moves = moves_driver(&member.have, &want);
    // A failed node without allocatable units has no workload to disturb, so it is updated immediately.
    let nothing_to_lose = member.was_failing() && member.allocatable() == 0 && member.external.by_claims().is_none();
    // What has been requested stays so while the node waits.
    let settle = |groups| {
        let settled = settle(member, groups, now);
        Decision { report_holders: settled.report_holders || holders::is_requested(member), ..settled }
    };
    let pending = |message: String| Decision {
        note: Some(Note::new(Reason::RolloutPending, message)),
        ..settle(member.have.clone())
    };
    let is_own = |turn: &&Turn| matches!(turn, Turn::Unanswered(node) if *node == member.node.name);
    if !nothing_to_lose && let Some(other) = turn.as_ref().filter(|turn| !is_own(turn)) {
        return pending(format!("update pending: {other}"));
    }
    if !nothing_to_lose && (!member.node.ready || member.node.deleting) {
        // The node's own reason explains it.
        return settle(member.have.clone());
    }
    let must_be_idle = needs_idle_gpus(member, &member.have, &want);
    if must_be_idle {
        match member.gpu_pods.map(|pods| &pods.users) {
            Some(pods) if !pods.is_empty() => {
                pool.ask_again = true;
                return Decision { note: Some(in_use(pods)), ..settle(member.have.clone()) };
            }
            Some(_) => {}
            None => {
                if pool.questions.len() < ASK_AT_ONCE {
                    pool.questions.insert(member.node.name.clone());
                }
                return pending("update pending: nodes of a pool are updated one at a time".to_owned());
            }
        }
    }
    if nothing_to_lose {
        return Decision { release: driver_moves || must_release(member, now), ..settle(want) };
    }
    let rollout = Rollout { step: RolloutStep::Check, from: member.have.clone(), since: Time(now) };
    let decision =
        if must_be_idle { check(member, want, &rollout, now, pool) } else { begin(member, want, &rollout, now) };
    if decision.rollout.is_some() {
        *turn = Some(Turn::Moving(member.node.name.clone()));
    }
    decision
}
