//! Updates that have failed: a stage that the update changed does not work in its turn or soon after it, a step did not end by its deadline,
//! or the node's GPUs are worse than before. What others do to a node, such as a reboot, a taint or a probe that is missing, is no failure of
//! the update.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{
    GpuNodeStatus, NodeName, Phase, PoolName,
    gpunode::{RolloutStep, StageRevisions},
    policy::Stage,
    policy_status::PoolRollout,
    reason::Reason,
};

use super::{goal::Goals, ledger::Ledger, terms::Terms};
use crate::{
    assess::{Assessment, member::Member, verdict::Verdict},
    clock::Clock,
    desired::has_nothing_else,
    note::listed,
    settings::STAGE_GRACE,
    world::{ContainerState, Exit, PodFacts},
};

#[derive(Debug, Default)]
pub struct Failures {
    /// Why updates have failed.
    pub nodes: BTreeMap<NodeName, String>,
    /// Nodes that had failed until now.
    pub recovered: BTreeSet<NodeName>,
}

/// The updates of a pool that have failed. Nodes that have recovered leave the ledger: they are ready with their target, and not with what
/// they were given back.
pub fn of(
    pool: &PoolName,
    members: &[Assessment<'_>],
    goals: &Goals,
    terms: &Terms<'_>,
    ledger: &mut Ledger<'_>,
) -> Failures {
    let has_goal = |member: &Member<'_>| {
        member.want().is_some_and(|want| has_nothing_else(&member.have, &goals.of_member(member, want)))
    };
    let has_recovered = |member: &Member<'_>| {
        let is_ready = member.rollout().is_none() && member.status().is_some_and(GpuNodeStatus::is_ready);
        is_ready && has_goal(member) && got_worse(member, goals).is_none()
    };
    let mut failures = Failures::default();
    for Assessment { member, .. } in members.iter().filter(|assessed| has_recovered(&assessed.member)) {
        if ledger.failed(pool).contains(&member.node.name) {
            ledger.recover(pool, &member.node.name);
            failures.recovered.insert(member.node.name.clone());
        }
    }
    for assessed in members {
        let member = &assessed.member;
        let Some(turn) = Turn::of(member, goals, terms) else { continue };
        if goals
            .last_update(member)
            .is_some_and(|last_update| !last_update.boot_id.is_empty() && *last_update.boot_id != *member.node.boot_id)
        {
            ledger.reboot(member);
        }
        let why = match failure(assessed, &turn, terms.clock) {
            Some(Failed { why, counts }) => counts.then_some(why),
            None => got_worse(member, goals).filter(|_| turn == Turn::Soak),
        };
        let Some(why) = why else { continue };
        // A node that is given back before its deadline is not updated again.
        let is_releasing = member.rollout().is_some_and(|rollout| rollout.step == RolloutStep::Release);
        if turn == Turn::Soak || is_releasing {
            ledger.fail(member);
        }
        failures.nodes.insert(member.node.name.clone(), why);
    }
    let current = |node: &NodeName| {
        let assessed = members.iter().find(|assessed| assessed.member.node.name == *node)?;
        let Verdict { reason, message, .. } = &assessed.verdict;
        let failing = reason.is_failure().then(|| format!("node {node}: {reason}: {message}"));
        failing.or_else(|| got_worse(&assessed.member, goals))
    };
    for node in ledger.failed(pool) {
        let why = || current(node).unwrap_or_else(|| format!("the update of node {node} has failed"));
        failures.nodes.entry(node.clone()).or_insert_with(why);
    }
    failures
}

/// Returns why a pool is halted in which updates seem to reboot nodes. One reboot may be a coincidence.
pub fn rebooted(pool: Option<&PoolRollout>) -> Option<String> {
    let reboots = &pool?.reboots;
    let nodes: BTreeSet<_> = reboots.iter().map(|reboot| reboot.node.to_string()).collect();
    let nodes = listed(&nodes.into_iter().collect::<Vec<_>>());
    (reboots.len() > 1)
        .then(|| format!("updates may reboot nodes: {nodes} rebooted during or shortly after the update"))
}

/// When a failure counts against an update.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// The new revisions are being installed, or the driver is being released.
    Update,
    /// The node has to work for a while after its update.
    Soak,
}

impl Turn {
    /// A node that awaits its pods has nothing new yet, and what failed before the pool was rolled back is no failure to return.
    fn of(member: &Member<'_>, goals: &Goals, terms: &Terms<'_>) -> Option<Self> {
        if let Some(rollout) = member.rollout() {
            let is_of_goal = || member.want().is_some_and(|want| goals.of_member(member, want) == member.have);
            let has_begun = rollout.step != RolloutStep::Await && (!goals.rolled_back || is_of_goal());
            return has_begun.then_some(Self::Update);
        }
        let until = goals.soaks_until(member, terms.strategy.canary.as_ref(), terms.progress_deadline)?;
        let is_new = !goals.rolled_back && goals.update_to_want(member).is_some();
        (is_new && !terms.clock.reached(until)).then_some(Self::Soak)
    }
}

struct Failed {
    why: String,
    counts: bool,
}

/// A failure counts once it has lasted, or once the same container has failed again.
fn failure(assessed: &Assessment<'_>, turn: &Turn, clock: &Clock) -> Option<Failed> {
    let Assessment { member, verdict, .. } = assessed;
    let status = member.status();
    let overdue = member.overdue();
    let phase = overdue.map_or(verdict.phase, |status| status.phase);
    let is_failure = verdict.reason.is_failure() && !verdict.lacks_a_gpu() && !is_by_others(verdict);
    let stages = changed_stages(member, phase, turn);
    if !(is_failure || overdue.is_some()) || stages.is_empty() {
        return None;
    }
    let why = format!("node {}: {}: {}", member.node.name, verdict.reason, verdict.message);
    let fails_again = || stages.iter().flat_map(|stage| member.pods_of(*stage)).any(fails_again);
    // Until the failure has been written, it is not known since when it lasts.
    let known = status.filter(|status| status.phase == verdict.phase && status.reason() == Some(verdict.reason));
    let since = known.and_then(GpuNodeStatus::since);
    let lasts = || since.is_some_and(|since| clock.passed(since, STAGE_GRACE));
    Some(Failed { why, counts: overdue.is_some() || fails_again() || lasts() })
}

/// Taints and probes are not the update's, and a webhook that does not answer has not judged the update's pods.
fn is_by_others(verdict: &Verdict) -> bool {
    match verdict.reason {
        Reason::UntoleratedTaint | Reason::ProbeMissing | Reason::GpuNodeUnreadable => true,
        Reason::PodsForbidden => verdict.message.contains("failed calling webhook"),
        _ => false,
    }
}

/// Returns the stages of a phase that an update changes.
fn changed_stages(member: &Member<'_>, phase: Phase, turn: &Turn) -> Vec<Stage> {
    let from = match turn {
        Turn::Update => member.rollout().map(|rollout| &rollout.from),
        Turn::Soak => member.last_update().map(|last_update| &last_update.from),
    };
    let changed = |stage: &Stage| from.is_none_or(|from| from.get(*stage) != member.have.get(*stage));
    let of_phase: &[Stage] = match phase {
        Phase::Driver => &[Stage::Driver],
        Phase::Toolkit => &[Stage::Toolkit],
        Phase::DevicePlugin => &[Stage::DevicePlugin, Stage::Mps],
        Phase::Validation => &Stage::ALL,
        Phase::Unmanaged | Phase::Discovery | Phase::Ready => &[],
    };
    of_phase.iter().copied().filter(changed).collect()
}

/// Kubelet delays the second restart of a container, which may be too short to be seen, and forgets its failures when the machine is rebooted.
fn fails_again(pod: &PodFacts) -> bool {
    pod.init.iter().chain(&pod.containers).any(|container| {
        let fails = match &container.state {
            ContainerState::Waiting { reason, .. } => reason == "CrashLoopBackOff",
            ContainerState::Ended(exit) => exit.is_failure(),
            ContainerState::Running(_) => false,
        };
        fails && container.last_failure.as_ref().is_some_and(Exit::is_failure)
    })
}

/// Returns why a node that has been updated is worse than before.
fn got_worse(member: &Member<'_>, goals: &Goals) -> Option<String> {
    let last_update = goals.last_update(member).filter(|last_update| last_update.at.is_some())?;
    let is_update = last_update.from != StageRevisions::default();
    let more = problems(member).checked_sub(last_update.unhealthy).filter(|more| is_update && *more > 0)?;
    Some(format!("node {}: {more} of its GPUs have had a problem since its update", member.node.name))
}

/// Counts the GPUs with a known problem.
pub fn problems(member: &Member<'_>) -> u32 {
    member.health.unhealthy + member.health.degraded
}
