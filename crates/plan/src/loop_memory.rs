//! What the reconcile loop remembers from one pass to the next, because the API server does not store it: recent failures and the times of
//! writes. Time is an argument.

pub mod labels;
pub mod reads;
pub mod retry;
pub mod throttle;
mod unhashed;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpu_operator_crd::NodeName;

pub use retry::{Class, Failure};

use labels::Settling;
use reads::Busy;
use reads::Unread;
use retry::Retry;
use throttle::Overdue;
use throttle::Throttle;
use unhashed::Unhashed;

use crate::{
    memo::Memo,
    output::write::{Plan, Steps, Write},
    time::Uptime,
    world::{GpuPods, LogTails, World},
};

/// The state that one pass leaves for the next.
///
/// A [`Pass`](crate::pass::Pass) calls [`Self::annotate`] before it plans, [`Self::unreadable`] and [`Self::read`] around the reading
/// of logs, [`Self::listed`] and [`Self::postpone`] around the listing of pods, [`Self::begin`] with the final plan, and
/// [`Self::holds`] and [`Self::settled`] around each write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoopState {
    busy: Busy,
    labels: Settling,
    /// What the last plan leaves for the next.
    pub memo: Unhashed<Memo>,
    overdue: Overdue,
    retry: Retry,
    throttle: Throttle,
    unread: Unread,
    /// When the first status that came too soon may be written.
    next_status: Option<Uptime>,
    /// When a failed write was resolved that a status may report.
    resolved: Option<Uptime>,
}

impl LoopState {
    /// Adds the findings of earlier passes to the world.
    pub fn annotate(&mut self, world: &mut World, now: Uptime) {
        self.labels.annotate(world, now);
        self.busy.annotate(world, now);
        self.retry.annotate(world, now);
    }

    /// Returns the cached read errors of validation pods that are in back-off.
    pub fn unreadable(&self, pods: &BTreeSet<String>, now: Uptime) -> LogTails {
        self.unread.errors(pods, now)
    }

    pub fn read(&mut self, tails: &LogTails, now: Uptime) {
        self.unread.read(tails, now);
    }

    pub fn listed(&mut self, pods: &BTreeMap<NodeName, GpuPods>, world: &World, now: Uptime) {
        self.busy.listed(pods, world, now);
    }

    /// Without those that are being updated.
    pub fn lists_left(&self) -> usize {
        self.busy.left()
    }

    /// Records the number of nodes for which the pass had no request left.
    pub fn postpone(&mut self, nodes: usize) {
        self.busy.postpone(nodes);
    }

    /// Returns the writes that are due, in steps: throttled statuses and delayed repairs are left out, overdue policy statuses come early.
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

    pub fn holds(&self, write: &Write, now: Uptime) -> bool {
        self.retry.holds(write, now)
    }

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
        let writes = [self.labels.next(), self.retry.next(), self.next_status, self.resolved];
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
