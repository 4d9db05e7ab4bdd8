//! The second half of a pass: writes, step by step. A write that fails, is held or is not answered delays only those that depend on it.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::request::{Answer, Request};
use crate::{
    loop_memory::LoopState,
    output::write::{Dependency, Steps, Write},
    time::Uptime,
};

/// How long after its observation a plan waits for answers. The next pass may begin as soon as all have arrived.
const LIFETIME: Duration = Duration::from_secs(10);
/// How long after its observation a plan begins writes: then it may no longer be right, because a node that was idle may have GPU pods. The
/// rest of the lifetime is for answers: without one, the next pass does not know what a write has changed, and may fail with a conflict.
const WRITE_WINDOW: Duration = Duration::from_secs(7);
/// The same while pods wait for a node, which the next plan may find ready.
const SHORT_WRITE_WINDOW: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Writing {
    begins_until: Uptime,
    /// When it waits no longer for answers.
    until: Uptime,
    later: VecDeque<Vec<Arc<Write>>>,
    outstanding: Vec<Arc<Write>>,
    /// Writes that the next step does not wait for.
    slow: Vec<Arc<Write>>,
    /// What does not exist because a write has failed or was not made.
    missing: BTreeSet<Dependency>,
}

impl Writing {
    /// The world was observed at `observed`.
    pub fn begin(
        steps: Steps,
        observed: Uptime,
        has_waiting_pods: bool,
        carry: &LoopState,
        uptime: Uptime,
    ) -> (Self, Vec<Request>) {
        let until = observed + LIFETIME;
        let begins_until =
            (observed + WRITE_WINDOW).min(if has_waiting_pods { uptime + SHORT_WRITE_WINDOW } else { until });
        let (outstanding, slow, missing) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut writing = Self { begins_until, until, later: steps.into(), outstanding, slow, missing };
        let requests = writing.next(carry, uptime);
        (writing, requests)
    }

    pub fn begins_until(&self) -> Uptime {
        self.begins_until
    }

    pub fn until(&self) -> Uptime {
        self.until
    }

    pub fn outstanding(&self) -> impl Iterator<Item = &Arc<Write>> {
        self.outstanding.iter().chain(&self.slow)
    }

    pub fn later(&self) -> impl Iterator<Item = &Arc<Write>> {
        self.later.iter().flatten()
    }

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

    /// Returns whether the write was outstanding.
    fn remove(&mut self, write: &Arc<Write>) -> bool {
        let removed = |list: &mut Vec<Arc<Write>>| list.extract_if(.., |other| Arc::ptr_eq(other, write)).count() > 0;
        removed(&mut self.outstanding) || removed(&mut self.slow)
    }

    /// Whether another write of the object is not answered yet: the API server may reject the later one as outdated.
    fn is_busy(&self, write: &Write) -> bool {
        let of = |other: &Write| {
            (other.target.kind, other.target.name.as_str()) == (write.target.kind, write.target.name.as_str())
        };
        self.slow.iter().any(|slow| of(slow))
    }

    /// Returns the writes of the next step once those of the last have ended.
    fn next(&mut self, carry: &LoopState, uptime: Uptime) -> Vec<Request> {
        while self.outstanding.is_empty() && uptime < self.begins_until {
            let Some(step) = self.later.pop_front() else { break };
            let lacks = |write: &Arc<Write>| {
                !self.missing.is_empty() && write.requires().iter().any(|required| self.missing.contains(required))
            };
            let held = |write: &Arc<Write>| lacks(write) || self.is_busy(write) || carry.holds(write, uptime);
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
