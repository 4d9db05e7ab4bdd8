//! What the reconcile loop carries over from one pass to the next, because the API server does not store it: recent failures and
//! the times of writes. A pure step function: time is an argument.

pub mod busy;
pub mod failure;
pub mod overdue;
pub mod retry;
pub mod throttle;
pub mod unread;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpu_operator_crd::NodeName;

pub use failure::{Class, Failure};

use busy::Busy;
use overdue::Overdue;
use retry::Retry;
use throttle::Throttle;
use unread::Unread;

use crate::{
    output::{
        plan::{Plan, Steps},
        write::Write,
    },
    time::Uptime,
    world::{GpuPods, LogTails, World},
};

/// The state that one pass leaves for the next.
///
/// A [`Pass`](crate::pass::Pass) calls [`Self::enrich`] before it plans, [`Self::unreadable`] and [`Self::read`] around the reading
/// of logs, [`Self::listed`] and [`Self::postpone`] around the listing of pods, [`Self::begin`] with the final plan, and
/// [`Self::holds`] and [`Self::settled`] around each write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoopState {
    busy: Busy,
    overdue: Overdue,
    retry: Retry,
    throttle: Throttle,
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
        self.retry.report(world);
    }

    /// Returns the cached read errors of those of these validation pods that are still in back-off.
    pub fn unreadable(&self, pods: &BTreeSet<String>, now: Uptime) -> LogTails {
        self.unread.errors(pods, now)
    }

    /// Records the logs that were read, or could not be.
    pub fn read(&mut self, tails: &LogTails, now: Uptime) {
        self.unread.read(tails, now);
    }

    /// Records the pods of nodes that were listed.
    pub fn listed(&mut self, pods: &BTreeMap<NodeName, GpuPods>, world: &World, now: Uptime) {
        self.busy.listed(pods, world, now);
    }

    /// Returns the number of nodes without an update whose pods may be listed at present.
    pub fn lists_left(&self) -> usize {
        self.busy.left()
    }

    /// Records for how many nodes whose pods are needed the pass had no request left.
    pub fn postpone(&mut self, nodes: usize) {
        self.busy.postpone(nodes);
    }

    /// Takes the writes out of a plan, without the statuses that come too soon after the last write and the repairs of existing
    /// DaemonSets that are held. The statuses of policies that several passes have not come to are among the first.
    pub fn begin(&mut self, plan: &mut Plan, world: &World, now: Uptime) -> Steps {
        self.throttle.begin(&plan.writes, now);
        self.next_status = None;
        plan.writes.retain(|write| {
            let wait = self.throttle.wait(write, now);
            self.next_status = self.next_status.into_iter().chain(wait.map(|wait| now + wait)).min();
            wait.is_none()
        });
        let resolved = self.retry.begin(&mut plan.writes, world, now);
        self.resolved = resolved.then_some(now);
        let mut steps = plan.take_writes();
        self.overdue.begin(&mut steps, now);
        steps
    }

    /// Returns whether a write is not to be made yet.
    pub fn holds(&self, write: &Write, now: Uptime) -> bool {
        self.retry.holds(write, now)
    }

    /// Records the result of a write.
    pub fn settled(&mut self, write: &Write, result: Result<(), Failure>, now: Uptime) {
        match result {
            Ok(()) => {
                if self.retry.succeeded(write, now) {
                    self.resolved = Some(now);
                }
                self.throttle.written(write, now);
                self.overdue.written(write);
            }
            Err(failure) => {
                self.retry.failed(write, failure, now);
            }
        }
    }

    /// Returns how soon to plan again, if something is held or a message is to change.
    pub fn next(&self, now: Uptime) -> Option<Duration> {
        let writes = [self.retry.next(), self.next_status, self.resolved];
        let next = writes.into_iter().chain([self.busy.next(now)]).flatten().min();
        next.map(|next| next.saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        output::{body::Body, write::Urgency},
        world::TaintWrite,
    };

    #[test]
    fn a_status_that_comes_too_soon_is_delayed() {
        let (mut carry, world, now) = (LoopState::default(), World::default(), Uptime::ZERO);
        let status = Body::PolicyStatus(Box::default());
        let write = Write { urgency: Urgency::Prompt, ..Write::new("all", status) };
        let plan = || Plan { writes: vec![write.clone()], ..Plan::default() };
        assert_eq!((carry.begin(&mut plan(), &world, now).len(), carry.next(now)), (1, None));
        carry.settled(&write, Ok(()), now);
        assert_eq!(carry.begin(&mut plan(), &world, now).len(), 0);
        assert_eq!(carry.next(now), Some(Duration::from_secs(1)));
    }

    #[test]
    fn that_a_failure_is_resolved_is_reported_at_once() {
        let (mut carry, world, now) = (LoopState::default(), World::default(), Uptime::ZERO);
        let write = Write::new("a", Body::Taints(TaintWrite::default()));
        let failure = || Failure { class: Class::Forbidden, message: "no".into() };
        carry.settled(&write, Err(failure()), now);
        assert_eq!(carry.next(now), Some(Duration::from_secs(30)));
        // The write is not needed any more.
        let _ = carry.begin(&mut Plan::default(), &world, now);
        assert_eq!(carry.next(now), Some(Duration::ZERO));
        let _ = carry.begin(&mut Plan::default(), &world, now);
        assert_eq!(carry.next(now), None);
        carry.settled(&write, Err(failure()), now);
        carry.settled(&write, Ok(()), now);
        assert_eq!(carry.next(now), Some(Duration::ZERO));
    }
}
