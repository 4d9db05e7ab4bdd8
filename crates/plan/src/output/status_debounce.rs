//! Passing phases: what is written of one stands for a while, although the next has begun, so that an install costs few writes.

use std::{collections::HashMap, time::Duration};

use gpu_operator_crd::{GpuNode, GpuNodeStatus, Phase, reason::Reason};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::{
    assess::{member::Member, verdict::Verdict},
    settings::{JUST_THROUGH, PASSING, PASSING_AT_MOST, PASSING_PER_NODE},
    time::{later, older},
};

/// How long things may last that a node's status shows.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long a phase may last.
    pub deadline: SignedDuration,
    /// For how long a passing phase stands before the next one is worth a write.
    pub debounce: Duration,
}

/// For how long a passing phase of a policy's node stands before the next one is worth a write, by policy: the longer, the more
/// of its nodes are in one, or have just come through. (The last of many are as slow as those before them.)
#[must_use]
pub fn lulls<'w>(gpu_nodes: impl Iterator<Item = &'w GpuNode>, now: Timestamp) -> HashMap<&'w str, Duration> {
    let is_through = |status: &GpuNodeStatus| {
        status.is_ready() && status.since().is_some_and(|since| !older(since, JUST_THROUGH, now))
    };
    // Those that wait for their turn are in no hurry, and keep nobody else waiting.
    let is_on_its_way = |status: &GpuNodeStatus| {
        status.reason.is_some_and(|reason| is_passing(status.phase, reason) && !reason.stops_the_clock())
    };
    let mut nodes: HashMap<&str, u32> = HashMap::new();
    for gpu_node in gpu_nodes {
        let counts = gpu_node.status.as_ref().is_some_and(|status| is_through(status) || is_on_its_way(status));
        if let Some(policy) = gpu_node.spec.policy.as_deref().filter(|_| counts) {
            *nodes.entry(policy).or_default() += 1;
        }
    }
    let lull = |nodes: u32| PASSING_PER_NODE.saturating_mul(nodes).clamp(PASSING, PASSING_AT_MOST);
    nodes.into_iter().map(|(policy, nodes)| (policy, lull(nodes))).collect()
}

/// Whether a node is on its way from one phase to another, with nothing wrong.
pub fn is_passing(phase: Phase, reason: Reason) -> bool {
    let underway = !reason.is_failure() && !reason.counts_apart() && reason != Reason::NodeNotReady;
    underway && !matches!(phase, Phase::Ready | Phase::Unmanaged)
}

/// What was written of a passing phase and stands though another one has come.
pub struct Held<'s> {
    /// What was written.
    pub status: &'s GpuNodeStatus,
    /// When what is not told yet began, at the latest.
    pub began: Timestamp,
    /// When it will be told, if nothing else comes before.
    pub until: Timestamp,
}

/// While one passing phase follows another within moments, what was written of the first stands: until it has stood for a
/// while, and nothing has stirred on the node for as long, or its deadline has come.
pub fn held<'s>(
    member: &Member<'_>,
    before: &'s GpuNodeStatus,
    verdict: &Verdict,
    debounce: Duration,
) -> Option<Held<'s>> {
    let since = before.since()?;
    let both = is_passing(before.phase, before.reason?) && is_passing(verdict.phase, verdict.reason);
    let health = &member.health;
    if !both || (before.gpus.unhealthy, before.gpus.degraded) != (health.unhealthy, health.degraded) {
        return None;
    }
    let began = member.last_stir().map_or(since, |stir| stir.max(since));
    if before.phase == verdict.phase && before.reason == Some(verdict.reason) {
        // Other words for the same, such as the container that a pod is at; but for a count that stays another.
        let same = before.gpus.allocatable == member.allocatable();
        let until = if same { Timestamp::MAX } else { later(began, debounce) };
        return Some(Held { status: before, began, until });
    }
    let deadline = before.deadline.as_ref().map_or(Timestamp::MAX, |deadline| deadline.0);
    Some(Held { status: before, began, until: later(began, debounce).min(deadline) })
}
