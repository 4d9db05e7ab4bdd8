//! A minimum interval between the writes of each status: what changes in between is written together. Counts of a policy, which wake all
//! watchers, wait for [`PROMPT`] at first; the interval doubles with each write up to [`MAX_POLICY_PROGRESS`], until nothing has been
//! written for [`QUIET`]. Transient phases of a node wait for [`NODE_PROGRESS`] or, if that is longer, [`PER_NODE`] for each node being
//! installed, at most [`MAX_INTERVAL`]: one write per second, however many nodes are installed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    output::{
        body::{Kind, Target},
        write::{Step, Steps, Urgency, Write},
    },
    time::Uptime,
};

/// The interval of changes that a user may wait for or act upon.
const PROMPT: Duration = Duration::from_secs(1);
/// The longest interval of counts in the status of a policy.
const MAX_POLICY_PROGRESS: Duration = Duration::from_secs(30);
/// Without a write for this time, a status is quiet: a node whose status was written within it is being installed.
const QUIET: Duration = Duration::from_mins(1);
/// The shortest interval of transient phases: an installation of a few seconds needs two writes.
const NODE_PROGRESS: Duration = Duration::from_secs(10);
/// The share of each installing node in the interval of transient phases.
const PER_NODE: Duration = Duration::from_secs(1);
/// The longest interval of transient phases.
const MAX_INTERVAL: Duration = Duration::from_mins(10);
/// How soon a plan looks again at changes that are written with the next one.
const NEXT_LOOK: Duration = Duration::from_hours(1);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Throttle {
    written: BTreeMap<Target, Written>,
    /// Nodes whose status was written recently, or is in the current plan because of a transient phase.
    installing: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Written {
    at: Uptime,
    gap: Duration,
}

impl Written {
    fn is_recent(&self, now: Uptime) -> bool {
        now.saturating_sub(self.at) < QUIET
    }
}

impl Throttle {
    pub fn begin(&mut self, writes: &[Write], now: Uptime) {
        self.written.retain(|_, last| now.saturating_sub(last.at) < MAX_INTERVAL);
        let recent =
            self.written.iter().filter(|(target, last)| target.kind == Kind::GpuNode && last.is_recent(now)).count();
        let is_transient = |write: &&Write| write.target.kind == Kind::GpuNode && write.urgency == Urgency::Progress;
        let is_other = |write: &&Write| !self.written.get(&write.target).is_some_and(|last| last.is_recent(now));
        let others = writes.iter().filter(is_transient).filter(is_other).count();
        self.installing = u32::try_from(recent + others).unwrap_or(u32::MAX);
    }

    /// Returns `None` if the write may be made now.
    pub fn wait(&self, write: &Write, now: Uptime) -> Option<Duration> {
        if write.urgency == Urgency::Detail {
            return Some(NEXT_LOOK);
        }
        let last = self.written.get(&write.target)?;
        let interval = match (write.urgency, write.target.kind) {
            (Urgency::Prompt, Kind::ClusterGpuPolicy) => PROMPT,
            (Urgency::Progress, Kind::ClusterGpuPolicy) => last.gap,
            // The status of its policy, which summarizes it, must not be ahead of a node's.
            (Urgency::Immediate | Urgency::Detail | Urgency::Prompt, _) => return None,
            (Urgency::Progress, _) => PER_NODE.saturating_mul(self.installing).clamp(NODE_PROGRESS, MAX_INTERVAL),
        };
        interval.checked_sub(now.saturating_sub(last.at)).filter(|wait| !wait.is_zero())
    }

    pub fn written(&mut self, write: &Write, now: Uptime) {
        if write.urgency == Urgency::Immediate {
            return;
        }
        let last = self.written.get(&write.target).filter(|last| last.is_recent(now));
        let gap = last.map_or(PROMPT, |last| (last.gap * 2).min(MAX_POLICY_PROGRESS));
        self.written.insert(write.target.clone(), Written { at: now, gap });
    }
}

// Policy statuses are the last writes of a pass, and a pass ends after some seconds: while a large fleet is installed, no pass would write
// them for minutes.

/// After this time, the status of a policy is written before those of its nodes, although it shows more than these.
const OVERDUE_AFTER: Duration = Duration::from_secs(30);

/// Since when passes have wanted to write the statuses of policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Overdue(BTreeMap<Target, Uptime>);

impl Overdue {
    /// Moves overdue statuses to an earlier step: after the finalizers, on which all else depends, and the taints, for whose end pods may
    /// be waiting.
    pub fn begin(&mut self, steps: &mut Steps, now: Uptime) {
        let is_policy_status = |write: &Write| write.step() == Step::PolicyStatuses;
        let wanted = steps.iter().flatten().filter(|write| is_policy_status(write));
        let wanted = wanted.map(|write| (write.target.clone(), *self.0.get(&write.target).unwrap_or(&now)));
        self.0 = wanted.collect();
        let is_overdue = |write: &Arc<Write>| {
            let since = self.0.get(&write.target).filter(|_| is_policy_status(write));
            since.is_some_and(|since| now.saturating_sub(*since) >= OVERDUE_AFTER)
        };
        let overdue: Vec<_> =
            steps.iter_mut().flat_map(|step| step.extract_if(.., |write| is_overdue(write))).collect();
        if overdue.is_empty() {
            return;
        }
        steps.retain(|step| !step.is_empty());
        let is_first = |step: &Vec<Arc<Write>>| step.first().is_some_and(|write| write.step() <= Step::Taints);
        let first = steps.iter().take_while(|step| is_first(step)).count();
        steps.insert(first, overdue);
    }

    pub fn written(&mut self, write: &Write) {
        if write.step() == Step::PolicyStatuses {
            self.0.remove(&write.target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::body::Body;

    /// Returns the seconds in which a change of each second is written.
    fn writes(throttle: &mut Throttle, body: &Body, urgency: Urgency, seconds: u64) -> Vec<u64> {
        let write = Write { urgency, ..Write::new("a", body.clone()) };
        let mut made = Vec::new();
        for second in 0..seconds {
            let now = Uptime::from_secs(second);
            throttle.begin(std::slice::from_ref(&write), now);
            if throttle.wait(&write, now).is_none() {
                throttle.written(&write, now);
                made.push(second);
            }
        }
        made
    }

    #[test]
    fn each_urgency_has_an_interval() {
        let policy = Body::PolicyStatus(Box::default());
        let node = Body::Status(Box::default());
        let condition = Body::Conditions(BTreeMap::new());
        for (body, urgency, expected) in [
            (&policy, Urgency::Prompt, vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
            (&policy, Urgency::Progress, vec![0, 1, 3, 7]),
            (&policy, Urgency::Detail, vec![]),
            (&node, Urgency::Prompt, vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
            (&node, Urgency::Progress, vec![0, 10]),
            (&condition, Urgency::Prompt, vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
            (&condition, Urgency::Progress, vec![0, 10]),
        ] {
            assert_eq!(writes(&mut Throttle::default(), body, urgency, 12), expected, "{urgency:?}");
        }
    }

    #[test]
    fn counts_are_written_less_and_less_often_until_it_is_quiet() {
        let (mut throttle, counts) = (Throttle::default(), Body::PolicyStatus(Box::default()));
        let made = writes(&mut throttle, &counts, Urgency::Progress, 100);
        assert_eq!(made, [0, 1, 3, 7, 15, 31, 61, 91]);
        let write = Write { urgency: Urgency::Progress, ..Write::new("a", counts) };
        let after = |seconds| Uptime::from_secs(91) + Duration::from_secs(seconds);
        throttle.written(&write, after(59));
        assert_eq!(throttle.wait(&write, after(60)), Some(Duration::from_secs(29)), "it was not quiet for a minute");
        throttle.written(&write, after(59 + 60));
        assert_eq!(throttle.wait(&write, after(59 + 61)), None, "it was");
    }

    fn phase(node: u32) -> Write {
        Write { urgency: Urgency::Progress, ..Write::new(node, Body::Status(Box::default())) }
    }

    #[test]
    fn a_phase_that_soon_ends_is_not_written() {
        let mut throttle = Throttle::default();
        let ready = |node| Write { urgency: Urgency::Prompt, ..phase(node) };
        let begun: Vec<_> = (0..400).map(phase).collect();
        throttle.begin(&begun, Uptime::ZERO);
        for write in &begun {
            throttle.written(write, Uptime::ZERO);
        }
        // In each second, ten nodes become ready, and the next ten enter another phase.
        for second in 0..39 {
            let now = Uptime::from_secs(second.into());
            let (done, next) = (second * 10..second * 10 + 10, second * 10 + 10..second * 10 + 20);
            let planned: Vec<_> = done.clone().map(ready).chain(next.map(phase)).collect();
            throttle.begin(&planned, now);
            let (made, held): (Vec<_>, Vec<_>) = planned.iter().partition(|write| throttle.wait(write, now).is_none());
            assert_eq!((made.len(), held.len()), (10, 10), "second {second}");
            for write in made {
                throttle.written(write, now);
            }
        }
    }

    #[test]
    fn phases_of_many_nodes_are_written_at_most_once_a_second() {
        let (mut throttle, mut made) = (Throttle::default(), 0);
        let planned: Vec<_> = (0..400).map(phase).collect();
        for second in 0..600 {
            let now = Uptime::from_secs(second);
            throttle.begin(&planned, now);
            for write in &planned {
                if throttle.wait(write, now).is_none() {
                    throttle.written(write, now);
                    made += u32::from(second > 0);
                }
            }
        }
        assert!((200..=600).contains(&made), "{made}");
    }
}
