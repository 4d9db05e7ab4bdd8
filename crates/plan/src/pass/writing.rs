//! The second half of a pass: the writes of its plan, step by step. A write that fails, that is not answered or that is held
//! delays only the writes that depend on it.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::request::{Answer, Request};
use crate::{
    carry::LoopState,
    output::{
        plan::Steps,
        write::{Dependency, Write},
    },
    time::Uptime,
};

/// How long after its world was observed a plan waits for the answers to its writes, at most: the next pass may be made as soon as all have
/// been answered.
const LIFETIME: Duration = Duration::from_secs(10);
/// How long after its world was observed a plan begins writes. What it decided may no longer be right after that: a node that was idle may
/// have GPU pods. The rest of its lifetime is for the answers to the last ones: without an answer, the next pass does not know what a
/// write has changed, and its own write to the same object may fail with a conflict.
const BEGINS: Duration = Duration::from_secs(7);
/// How long a plan begins writes while pods wait for a node: what it does not come to, the next pass plans again, which may find the
/// node ready.
const BRIEF: Duration = Duration::from_secs(1);

/// A plan that is being carried out.
#[derive(Clone, Debug)]
pub struct Writing {
    /// When it begins no more writes.
    begins_until: Uptime,
    /// When it waits no longer for the answers.
    until: Uptime,
    /// The steps that have not begun.
    later: VecDeque<Vec<Arc<Write>>>,
    /// The writes that have been requested and not answered.
    outstanding: Vec<Arc<Write>>,
    /// Those whose answers the next step does not wait for.
    slow: Vec<Arc<Write>>,
    /// What is not there, because a write has failed or was not made.
    missing: BTreeSet<Dependency>,
}

impl Writing {
    /// Begins to carry out the writes of a plan whose world was observed at `observed`, and returns the first requests.
    pub fn begin(
        steps: Steps,
        observed: Uptime,
        has_waiting_pods: bool,
        carry: &LoopState,
        uptime: Uptime,
    ) -> (Self, Vec<Request>) {
        let until = observed + LIFETIME;
        let begins_until = (observed + BEGINS).min(if has_waiting_pods { uptime + BRIEF } else { until });
        let (outstanding, slow, missing) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut writing = Self { begins_until, until, later: steps.into(), outstanding, slow, missing };
        let requests = writing.next(carry, uptime);
        (writing, requests)
    }

    /// Returns the time from which on no more writes are begun.
    pub fn begins_until(&self) -> Uptime {
        self.begins_until
    }

    /// Returns the time from which on answers are no longer waited for.
    pub fn until(&self) -> Uptime {
        self.until
    }

    /// Returns the writes that have been requested and not answered.
    pub fn outstanding(&self) -> impl Iterator<Item = &Arc<Write>> {
        self.outstanding.iter().chain(&self.slow)
    }

    /// Returns the writes that have not been requested.
    pub fn later(&self) -> impl Iterator<Item = &Arc<Write>> {
        self.later.iter().flatten()
    }

    /// Takes the answer to a write, and returns the requests that follow.
    pub fn answer(&mut self, answer: Answer, carry: &mut LoopState, uptime: Uptime) -> Vec<Request> {
        match answer {
            // What depends on it is not written in this pass.
            Answer::Slow(write) => {
                if self.remove(&write) {
                    self.missing.extend(write.provides());
                    self.slow.push(write);
                }
            }
            Answer::Written(write, result) => {
                self.remove(&write);
                if result.is_err() {
                    self.missing.extend(write.provides());
                }
                carry.settled(&write, result, uptime);
            }
            Answer::Logs(_) | Answer::Pods(_) => {}
        }
        self.next(carry, uptime)
    }

    /// Removes a write from the outstanding ones, and returns whether it was one.
    fn remove(&mut self, write: &Arc<Write>) -> bool {
        let removed = |list: &mut Vec<Arc<Write>>| list.extract_if(.., |other| Arc::ptr_eq(other, write)).count() > 0;
        removed(&mut self.outstanding) || removed(&mut self.slow)
    }

    /// Returns the writes of the next step once those of the last one have ended.
    fn next(&mut self, carry: &LoopState, uptime: Uptime) -> Vec<Request> {
        while self.outstanding.is_empty() && uptime < self.begins_until {
            let Some(step) = self.later.pop_front() else { break };
            let lacks = |write: &Arc<Write>| {
                !self.missing.is_empty() && write.requires().iter().any(|required| self.missing.contains(required))
            };
            let held = |write: &Arc<Write>| lacks(write) || carry.holds(write, uptime);
            let (held, ready): (Vec<_>, Vec<_>) = step.into_iter().partition(held);
            self.missing.extend(held.iter().flat_map(|write| write.provides()));
            self.outstanding = ready;
            if !self.outstanding.is_empty() {
                return self.outstanding.iter().cloned().map(Request::Write).collect();
            }
        }
        Vec::new()
    }
}
