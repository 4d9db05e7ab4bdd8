//! What the reconcile loop carries over from one pass to the next, because the API server does not store it: recent failures and
//! the times of writes. A pure step function: time is an argument.

pub mod backoff;
pub mod busy;
pub mod failure;
pub mod pace;
pub mod repairs;
pub mod unanswered;
pub mod unread;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use gpu_operator_crd::NodeName;

pub use failure::{Class, Failure};

use backoff::Backoff;
use busy::Busy;
use pace::StatusThrottle;
use repairs::Repairs;
use unanswered::Unanswered;
use unread::Unread;

use crate::{
    output::{
        events::Subject,
        plan::Plan,
        writes::{Stages, Write},
    },
    time::Uptime,
    world::{GpuPods, LogTails, World},
};

/// The state that one pass leaves for the next.
///
/// A [`Pass`](crate::pass::Pass) calls [`Self::enrich`] before it plans, [`Self::unreadable`] and [`Self::read`] around the reading
/// of logs, [`Self::listed`] and [`Self::postpone`] around the listing of pods, [`Self::begin`] with the final plan, and [`Self::holds`] and [`Self::settled`] around each write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoopState {
    backoff: Backoff,
    busy: Busy,
    pace: StatusThrottle,
    repairs: Repairs,
    unanswered: Unanswered,
    unread: Unread,
    /// When the first of the statuses that the current plan wanted too soon may be written.
    next_status: Option<Uptime>,
    /// When a failed write was resolved that a status may report.
    resolved: Option<Uptime>,
}

impl LoopState {
    /// Adds to the world what earlier passes have found out.
    pub fn enrich(&mut self, world: &mut World, now: Uptime) {
        self.busy.report(world, now);
        world.held_writes = self.backoff.refused();
        self.repairs.report(world);
        self.unanswered.report(world, now);
    }

    /// Returns the errors of those of these validation pods whose logs could not be read recently.
    #[must_use]
    pub fn unreadable(&self, pods: &BTreeSet<String>, now: Uptime) -> LogTails {
        self.unread.errors(pods, now)
    }

    /// Records the logs that were read, or could not be.
    pub fn read(&mut self, tails: &LogTails, now: Uptime) {
        self.unread.read(tails, now);
    }

    /// Records the pods of nodes that were listed.
    pub fn listed(&mut self, pods: &BTreeMap<NodeName, GpuPods>, now: Uptime) {
        self.busy.listed(pods, now);
    }

    /// Records for how many nodes whose pods are needed the pass had no request left.
    pub fn postpone(&mut self, nodes: usize) {
        self.busy.postpone(nodes);
    }

    /// Takes the writes out of a plan, without the policy statuses that come too soon after the last write, whose transitions are
    /// removed as well, and without the repairs of existing DaemonSets that are held. Records the other statuses as written.
    pub fn begin(&mut self, plan: &mut Plan, world: &World, now: Uptime) -> Stages {
        let mut waits = BTreeMap::new();
        plan.policies.retain(|name, status| {
            let before = world.policies.get(name).and_then(|policy| policy.status.as_ref());
            let wait = self.pace.wait(name, before, status, now);
            match wait {
                Some(wait) => drop(waits.insert(name.clone(), wait)),
                None => self.pace.written(name, now),
            }
            wait.is_none()
        });
        // A transition is published together with the status that shows it, and therefore only once.
        plan.events.retain(|event| !matches!(&event.subject, Subject::Policy(name, _) if waits.contains_key(name)));
        self.pace.keep(|name| plan.statuses.contains_key(name));
        self.next_status = waits.into_values().min().map(|wait| now + wait);
        let mut stages = plan.take_writes();
        self.repairs.begin(&mut stages, world, now);
        let resolved = self.backoff.keep(stages.iter().flatten().map(Arc::as_ref));
        self.resolved = resolved.then_some(now);
        self.unanswered.begin(world);
        stages
    }

    /// Returns whether a write is not to be made yet.
    #[must_use]
    pub fn holds(&self, write: &Write, now: Uptime) -> bool {
        self.backoff.holds(write, now) || self.repairs.holds(write, now)
    }

    /// Records the result of a write.
    pub fn settled(&mut self, write: &Write, result: Result<(), Failure>, now: Uptime) {
        match result {
            Ok(()) => {
                if self.backoff.succeeded(write) {
                    self.resolved = Some(now);
                }
                self.repairs.succeeded(write, now);
            }
            Err(failure) => {
                self.unanswered.failed(write, &failure, now);
                self.backoff.failed(write, failure, now);
            }
        }
    }

    /// Returns how soon to plan again, if something is held or a message is to change.
    #[must_use]
    pub fn next(&self, now: Uptime) -> Option<Duration> {
        let writes =
            [self.backoff.next(), self.repairs.next(), self.unanswered.next(), self.next_status, self.resolved];
        let next = writes.into_iter().chain([self.busy.next(now)]).flatten().min();
        next.map(|next| next.saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::{ClusterGpuPolicyStatus, reason::Reason};

    use super::*;
    use crate::output::events::Transition;

    fn plan_with_status() -> Plan {
        let status = ClusterGpuPolicyStatus::default();
        let subject = Subject::Policy("all".into(), "uid".into());
        Plan {
            policies: [("all".into(), status.clone())].into(),
            statuses: [("all".into(), status)].into(),
            events: vec![Transition { subject, reason: Reason::NodesNotReady, message: String::new() }],
            ..Plan::default()
        }
    }

    #[test]
    fn a_policys_status_that_comes_too_soon_is_delayed_together_with_its_events() {
        let (mut carry, world, now) = (LoopState::default(), World::default(), Uptime::ZERO);
        let mut first = plan_with_status();
        let writes = carry.begin(&mut first, &world, now);
        assert_eq!((writes.len(), first.events.len(), carry.next(now)), (1, 1, None));
        let mut second = plan_with_status();
        let writes = carry.begin(&mut second, &world, now);
        assert_eq!((writes.len(), second.events.len()), (0, 0));
        assert_eq!(carry.next(now), Some(Duration::from_secs(1)));
    }

    #[test]
    fn that_a_failure_is_resolved_is_reported_at_once() {
        let (mut carry, world, now) = (LoopState::default(), World::default(), Uptime::ZERO);
        let write = Write::Taint("a".into(), None);
        let failure = || Failure { class: Class::Forbidden, message: "no".into() };
        carry.settled(&write, Err(failure()), now);
        assert_eq!(carry.next(now), Some(Duration::from_secs(30)));
        // The write is not needed any more.
        carry.begin(&mut Plan::default(), &world, now);
        assert_eq!(carry.next(now), Some(Duration::ZERO));
        carry.begin(&mut Plan::default(), &world, now);
        assert_eq!(carry.next(now), None);
        carry.settled(&write, Err(failure()), now);
        carry.settled(&write, Ok(()), now);
        assert_eq!(carry.next(now), Some(Duration::ZERO));
    }
}
