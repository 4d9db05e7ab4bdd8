//! The record of published findings and of Events that were read, so that neither is repeated. It holds entries for existing
//! objects only.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use gpu_operator_plan::time::later;
use k8s_openapi::jiff::Timestamp;

use crate::{
    finding::{Finding, Mistake, PodEvent},
    pending::{PendingPod, Symptoms},
};

/// The maximum number of Events per minute.
const A_MINUTE: usize = 30;
const AT_ONCE: usize = 8;
/// The pauses after which a pod's Events are read for the second and the third time. They are not read a fourth time.
const READ_AGAIN: [Duration; 2] = [Duration::from_mins(4), Duration::from_mins(16)];
const MAX_POD_EVENTS: usize = 8;
/// How soon the Events of pods that were postponed are read.
const NEXT_TURN: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct Journal {
    published: BTreeSet<(String, Mistake)>,
    sent: VecDeque<Timestamp>,
    readings: BTreeMap<String, Reading>,
}

#[derive(Debug)]
struct Reading {
    times: usize,
    at: Timestamp,
    /// `None` if the Events could not be read.
    pod_events: Option<Vec<PodEvent>>,
}

impl Journal {
    /// Returns whether it has no entry that could become outdated.
    pub fn is_empty(&self) -> bool {
        self.published.is_empty() && self.readings.is_empty()
    }

    pub fn keep(&mut self, symptoms: &Symptoms) {
        let pods = symptoms.pods.values().map(|pod| pod.uid.as_str());
        let owners = symptoms.refused.values().map(|refused| refused.owner.uid());
        let there: BTreeSet<&str> = pods.chain(owners).collect();
        self.published.retain(|(uid, _)| there.contains(uid.as_str()));
        self.readings.retain(|uid, _| there.contains(uid.as_str()));
    }

    /// Returns the Events that were read so far, by the pods' uids.
    pub fn pod_events(&self) -> BTreeMap<String, Vec<PodEvent>> {
        self.readings.iter().filter_map(|(uid, reading)| Some((uid.clone(), reading.pod_events.clone()?))).collect()
    }

    /// Records the Events of a pod. If they could not be read, the attempt counts and the previous Events are kept.
    pub fn record(&mut self, uid: &str, pod_events: Option<Vec<PodEvent>>, now: Timestamp) {
        let before = self.readings.remove(uid);
        let times = before.as_ref().map_or(0, |reading| reading.times) + 1;
        let mut pod_events = pod_events.or_else(|| before?.pod_events);
        if let Some(pod_events) = &mut pod_events {
            pod_events.truncate(MAX_POD_EVENTS);
        }
        self.readings.insert(uid.to_owned(), Reading { times, at: now, pod_events });
    }

    /// Returns the pods whose Events should be read now, and when to read those of the others. Events are read again after some
    /// time, because there may be new ones.
    pub fn to_read<'p>(
        &self,
        pods: impl Iterator<Item = &'p PendingPod>,
        now: Timestamp,
    ) -> (Vec<&'p PendingPod>, Option<Timestamp>) {
        let mut due = Vec::new();
        let mut again: Option<Timestamp> = None;
        for pod in pods {
            let at = match self.readings.get(&pod.uid) {
                None => now,
                Some(reading) => match READ_AGAIN.get(reading.times - 1) {
                    Some(pause) => later(reading.at, *pause),
                    None => continue,
                },
            };
            if at <= now && due.len() < AT_ONCE {
                due.push(pod);
            } else {
                let at = at.max(later(now, NEXT_TURN));
                again = Some(again.map_or(at, |known| known.min(at)));
            }
        }
        (due, again)
    }

    /// Returns the findings to publish now, and when to publish the rest. Owners with the fewest published findings come first,
    /// so that a Job of a thousand pods does not suppress the finding of a single pod.
    pub fn to_publish(&mut self, findings: &[Finding], now: Timestamp) -> (Vec<Finding>, Option<Timestamp>) {
        while self.sent.front().is_some_and(|sent| later(*sent, Duration::from_mins(1)) <= now) {
            self.sent.pop_front();
        }
        let mut turns = BTreeMap::<(&str, Mistake), usize>::new();
        let mut waiting = Vec::new();
        for finding in findings {
            let turn = turns.entry((finding.family.as_str(), finding.reason)).or_default();
            if !self.published.contains(&(finding.subject.uid().to_owned(), finding.reason)) {
                waiting.push((*turn, finding));
            }
            *turn += 1;
        }
        waiting.sort_by_key(|(turn, _)| *turn);
        let to_publish: Vec<Finding> = waiting
            .iter()
            .take(A_MINUTE.saturating_sub(self.sent.len()))
            .map(|(_, finding)| (*finding).clone())
            .collect();
        for finding in &to_publish {
            self.published.insert((finding.subject.uid().to_owned(), finding.reason));
            self.sent.push_back(now);
        }
        let rest = waiting.len() > to_publish.len();
        let again = self.sent.front().filter(|_| rest).map(|sent| later(*sent, Duration::from_mins(1)));
        (to_publish, again)
    }
}
