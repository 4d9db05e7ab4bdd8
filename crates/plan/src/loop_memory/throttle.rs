//! How long the change of a status waits: what changes meanwhile is written together. Counts of a policy, which wake all watchers, wait for
//! [`PROMPT`] at first; the interval doubles with each write up to [`MAX_POLICY_PROGRESS`], until nothing has been written for [`QUIET`].
//! What a node passes through is shown once it has lasted for [`PASSING`], so a node that is ready before then needs one status.

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
/// Without a write for this time, the status of a policy is quiet.
const QUIET: Duration = Duration::from_mins(1);
/// How long something else than what its status shows has to be true of a node.
const PASSING: Duration = Duration::from_secs(10);
/// How soon a plan looks again at changes that are written with the next one.
const NEXT_LOOK: Duration = Duration::from_hours(1);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Throttle {
    /// The statuses of policies.
    written: BTreeMap<Target, Written>,
    /// Since when something else than what its status shows has been true of a node, or its record or labels have been written.
    passing: BTreeMap<String, Uptime>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Written {
    at: Uptime,
    gap: Duration,
}

impl Throttle {
    pub fn begin(&mut self, writes: &[Write], now: Uptime) {
        self.written.retain(|_, last| now.saturating_sub(last.at) < QUIET);
        let passing = writes.iter().filter(|write| write.urgency == Urgency::Progress && is_of_node(write));
        let since = |name: &String| self.passing.get(name).copied().unwrap_or(now);
        self.passing = passing.map(|write| (write.target.name.clone(), since(&write.target.name))).collect();
    }

    /// Returns `None` if the write may be made now.
    pub fn wait(&self, write: &Write, now: Uptime) -> Option<Duration> {
        let (since, interval) = match (write.urgency, write.target.kind) {
            (Urgency::Detail, _) => return Some(NEXT_LOOK),
            (Urgency::Prompt, Kind::ClusterGpuPolicy) => (self.written.get(&write.target)?.at, PROMPT),
            (Urgency::Progress, Kind::ClusterGpuPolicy) => {
                let last = self.written.get(&write.target)?;
                (last.at, last.gap)
            }
            (Urgency::Progress, _) => (*self.passing.get(&write.target.name)?, PASSING),
            // The status of its policy, which summarizes it, must not be ahead of a node's.
            (Urgency::Immediate | Urgency::Prompt, _) => return None,
        };
        interval.checked_sub(now.saturating_sub(since)).filter(|wait| !wait.is_zero())
    }

    pub fn written(&mut self, write: &Write, now: Uptime) {
        if is_of_node(write) {
            if let Some(since) = self.passing.get_mut(&write.target.name) {
                *since = now;
            }
        } else if write.urgency != Urgency::Immediate {
            let last = self.written.get(&write.target);
            let gap = last.map_or(PROMPT, |last| (last.gap * 2).min(MAX_POLICY_PROGRESS));
            self.written.insert(write.target.clone(), Written { at: now, gap });
        }
    }
}

fn is_of_node(write: &Write) -> bool {
    matches!(write.target.kind, Kind::GpuNode | Kind::Node)
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
            (&node, Urgency::Progress, vec![10]),
            (&condition, Urgency::Prompt, vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
            (&condition, Urgency::Progress, vec![10]),
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
        throttle.begin(&[], after(59));
        throttle.written(&write, after(59));
        assert_eq!(throttle.wait(&write, after(60)), Some(Duration::from_secs(29)), "it was not quiet for a minute");
        throttle.begin(&[], after(59 + 60));
        throttle.written(&write, after(59 + 60));
        assert_eq!(throttle.wait(&write, after(59 + 61)), None, "it was");
    }

    /// Returns in which second a change that lasts is written, if each of these seconds ends with one of these writes.
    fn shown_beside(others: &[(u64, &Write)], lasts: impl Fn(u64) -> bool) -> Option<u64> {
        let status = Write { urgency: Urgency::Progress, ..Write::new("a", Body::Status(Box::default())) };
        let mut throttle = Throttle::default();
        (0..60).find(|second| {
            let now = Uptime::from_secs(*second);
            let planned = lasts(*second).then(|| status.clone());
            throttle.begin(planned.as_slice(), now);
            let is_shown = planned.is_some_and(|write| throttle.wait(&write, now).is_none());
            others.iter().filter(|(at, _)| at == second).for_each(|(_, other)| throttle.written(other, now));
            is_shown
        })
    }

    #[test]
    fn a_passing_state_is_shown_once_it_has_lasted() {
        let label = |node: &str| Write::new(node, Body::Presence(true));
        assert_eq!(shown_beside(&[], |_| true), Some(10));
        assert_eq!(shown_beside(&[], |second| second % 10 != 9), None);
        assert_eq!(shown_beside(&[(0, &label("a")), (6, &label("a"))], |_| true), Some(16), "counted from its labels");
        assert_eq!(shown_beside(&[(6, &label("b"))], |_| true), Some(10));
    }
}
