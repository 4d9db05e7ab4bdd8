//! Debounces transient phases: a written phase is kept for a while although the next one has begun, so that an install
//! costs few writes.

use std::{collections::HashMap, time::Duration};

use gpu_operator_crd::{GpuNode, GpuNodeStatus, Phase, PolicyName, reason::Reason};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::{
    assess::{member::Member, verdict::Verdict},
    settings::{PASSING, PASSING_AT_MOST, PASSING_PER_NODE, RECENTLY_READY},
    time::{later, older},
};

/// How long phases in a node's status may last.
#[derive(Clone, Copy, Debug)]
pub struct StatusTiming {
    /// How long a phase may last before it is a failure.
    pub deadline: SignedDuration,
    /// How long a transient phase is kept in the status before the next one is written.
    pub debounce: Duration,
}

/// Returns how long a transient phase of a policy's node is kept before the next one is written, by policy: the longer,
/// the more of its nodes are in a transient phase or have just become ready. (The last of many nodes are as slow as
/// those before them.)
#[must_use]
pub fn debounce_by_policy<'w>(
    gpu_nodes: impl Iterator<Item = &'w GpuNode>,
    now: Timestamp,
) -> HashMap<&'w PolicyName, Duration> {
    let is_through = |status: &GpuNodeStatus| {
        status.is_ready() && status.since().is_some_and(|since| !older(since, RECENTLY_READY, now))
    };
    // Pending nodes are not counted: they do not delay other nodes.
    let is_in_progress = |status: &GpuNodeStatus| {
        status.reason().is_some_and(|reason| is_passing(status.phase, reason) && !reason.stops_the_clock())
    };
    let mut nodes: HashMap<&PolicyName, u32> = HashMap::new();
    for gpu_node in gpu_nodes {
        let counts = gpu_node.status.as_ref().is_some_and(|status| is_through(status) || is_in_progress(status));
        if let Some(policy) = gpu_node.spec.policy.as_ref().filter(|_| counts) {
            *nodes.entry(policy).or_default() += 1;
        }
    }
    let debounce = |nodes: u32| PASSING_PER_NODE.saturating_mul(nodes).clamp(PASSING, PASSING_AT_MOST);
    nodes.into_iter().map(|(policy, nodes)| (policy, debounce(nodes))).collect()
}

/// Returns whether a phase is transient, without a problem.
#[must_use]
pub fn is_passing(phase: Phase, reason: Reason) -> bool {
    let is_away = matches!(reason, Reason::NodeNotReady | Reason::NodeDeleting);
    let underway = !reason.is_failure() && !reason.counts_apart() && !is_away;
    underway && !matches!(phase, Phase::Ready | Phase::Unmanaged)
}

/// A written status of a transient phase that is kept although another phase has begun.
pub struct Debounced<'s> {
    /// The written status.
    pub status: &'s GpuNodeStatus,
    /// The latest time at which the phase that is not written yet began.
    pub began: Timestamp,
    /// The time at which it will be written, unless another write is due earlier.
    pub until: Timestamp,
}

/// Returns the written status of a transient phase to keep while transient phases follow each other quickly: until the
/// node has not changed for the debounce time, or the deadline is reached.
#[must_use]
pub fn debounced<'s>(
    member: &Member<'_>,
    before: &'s GpuNodeStatus,
    verdict: &Verdict,
    debounce: Duration,
) -> Option<Debounced<'s>> {
    let since = before.since()?;
    let both = is_passing(before.phase, before.reason()?) && is_passing(verdict.phase, verdict.reason);
    let health = &member.health;
    if !both || (before.gpus.unhealthy, before.gpus.degraded) != (health.unhealthy, health.degraded) {
        return None;
    }
    let began = member.last_pod_activity().map_or(since, |stir| stir.max(since));
    if before.phase == verdict.phase && before.reason() == Some(verdict.reason) {
        // Only the message differs, for example by the current container of a pod, or the number of allocatable GPUs,
        // which is written after the debounce time.
        let same = before.gpus.allocatable == member.allocatable();
        let until = if same { Timestamp::MAX } else { later(began, debounce) };
        return Some(Debounced { status: before, began, until });
    }
    let deadline = before.deadline.as_ref().map_or(Timestamp::MAX, |deadline| deadline.0);
    Some(Debounced { status: before, began, until: later(began, debounce).min(deadline) })
}
