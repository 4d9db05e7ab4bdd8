//! When a write is made again, because it failed or did not stay. Failures: the pause before each attempt doubles, whatever wakes the loop,
//! while all other writes go on. Repairs, which write again what another writer has changed: the first [`AT_ONCE`] are immediate, so that a
//! manual edit is reverted; then the pause doubles from [`FIRST_PAUSE`] to [`MAX_PAUSE`], so that a controller or webhook cannot cause
//! writes without end. These are 12 repairs in an hour.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{keys, reason::Reason};
use strum::IntoStaticStr;

use crate::{
    output::{
        body::{Body, Kind, Part, Target},
        write::Write,
    },
    revision::hash,
    time::Uptime,
    world::{Concern, HeldWrite, World},
};

/// The number of immediate repairs.
const AT_ONCE: u32 = 5;
/// The pause before the next repair, which doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(90);
/// The longest pause. A fight is over if no repair has been needed for as long.
const MAX_PAUSE: Duration = Duration::from_mins(10);
/// How long a success is remembered.
const MEMORY: Duration = Duration::from_hours(1);
/// How long a write has to fail to be reported, whatever the error.
const FAILS_FOR: Duration = Duration::from_mins(1);
/// How soon a new fight is reported.
const SOON: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    pub class: Class,
    /// Includes the action and the object.
    pub message: String,
}

#[derive(IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The operator's role lacks a permission.
    Forbidden,
    /// Another write came first, or another manager owns a field.
    Conflict,
    NotFound,
    /// The API server considers the object invalid.
    Invalid,
    /// At present: a PodDisruptionBudget forbids an eviction, or there are too many requests.
    TooManyRequests,
    Refused,
    Unreachable,
}

impl Class {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether only a person can fix the error.
    pub fn lasts(self) -> bool {
        matches!(self, Self::Forbidden | Self::Invalid)
    }

    /// The longest pause between two attempts.
    pub fn retry_within(self) -> Duration {
        Duration::from_mins(if self == Self::TooManyRequests { 1 } else { 5 })
    }

    /// Errors that only a person can fix are not retried every second.
    pub fn retry_after(self) -> Duration {
        match self {
            Self::Conflict | Self::NotFound => Duration::from_secs(1),
            Self::Unreachable | Self::Refused | Self::TooManyRequests => Duration::from_secs(5),
            Self::Forbidden | Self::Invalid => Duration::from_secs(30),
        }
    }
}

/// By the hash of their target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Retry {
    attempts: BTreeMap<u64, Attempts>,
    /// When the first held repair may be made, or a new fight is reported.
    next: Option<Uptime>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Attempts {
    success: Option<Success>,
    failed: Option<Failed>,
}

/// A success, and how often it was repeated because its content did not stay.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Success {
    content: u64,
    at: Uptime,
    repairs: u32,
    /// For a DaemonSet, its generation when the write was planned.
    before: Option<i64>,
    /// The pod that the API server would evict, and its UID.
    checked: Option<(String, String)>,
    fight: Option<Box<Fight>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fight {
    target: String,
    /// What the other manager does.
    deed: &'static str,
    concerns: Concern,
    /// The other manager, if the object names one.
    manager: Option<Interned>,
    needed: Uptime,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Failed {
    deletes: bool,
    evicts: Option<String>,
    /// The pod that does not exist because of it.
    creates: Option<String>,
    /// Without a success in between.
    since: Uptime,
    concerns: Concern,
    failure: Failure,
    pause: Duration,
    until: Uptime,
}

impl Retry {
    /// Adds lasting failures and current fights to the world.
    pub fn annotate(&self, world: &mut World, now: Uptime) {
        let failed = || self.attempts.values().filter_map(|attempts| attempts.failed.as_ref());
        let refused = |failed: &Failed| Some((failed.evicts.clone()?, failed.failure.message.clone()));
        world.refused_evictions.extend(failed().filter_map(refused));
        let refused = |failed: &Failed| Some((failed.creates.clone()?, failed.failure.message.clone()));
        world.refused_pods.extend(failed().filter_map(refused));
        let allowed = self.attempts.values().filter(|attempts| attempts.failed.is_none());
        world.allowed_evictions.extend(allowed.filter_map(|attempts| attempts.success.as_ref()?.checked.clone()));
        // That a pod must not be evicted yet is no failure.
        let lasts = |failed: &Failed| failed.evicts.is_none() && now.saturating_sub(failed.since) >= FAILS_FOR;
        let lasting = failed().filter(|failed| failed.failure.class.lasts() || lasts(failed));
        world.held_writes.extend(lasting.map(|failed| HeldWrite {
            concerns: failed.concerns.clone(),
            reason: Reason::ApplyFailed,
            message: failed.failure.message.clone(),
        }));
        for fight in self.fights() {
            let message = fight.message();
            match &fight.concerns {
                Concern::Node(node) => {
                    let messages = world.contested_nodes.entry(node.clone()).or_default();
                    if !messages.is_empty() {
                        messages.push_str("; ");
                    }
                    messages.push_str(&message);
                }
                concerns => {
                    let concerns = concerns.clone();
                    world.held_writes.push(HeldWrite { concerns, reason: Reason::ManagerConflict, message });
                }
            }
        }
    }

    /// Records the repairs of a plan, and removes those of DaemonSets that are held: what depends on such a DaemonSet need not wait,
    /// because it exists. Failed writes that the plan does not contain are forgotten: returns whether there were any.
    pub fn begin(&mut self, writes: &mut Vec<Write>, world: &World, now: Uptime) -> bool {
        self.next = None;
        for attempts in self.attempts.values_mut() {
            attempts.success.take_if(|success| now.saturating_sub(success.at) >= MEMORY);
            if let Some(success) = &mut attempts.success {
                success.fight.take_if(|fight| now.saturating_sub(fight.needed) >= MAX_PAUSE);
            }
        }
        for write in &*writes {
            self.note(write, world, now);
        }
        writes.retain(|write| {
            let exists = || world.daemon_sets.contains_key(&write.target.name);
            let holds = || self.attempts.get(&key(write)).is_some_and(|attempts| attempts.hold_repair(write, now));
            !(matches!(write.body, Body::DaemonSet(_)) && exists() && holds())
        });
        let resolved = self.forget_failures(writes);
        self.attempts.retain(|_, attempts| *attempts != Attempts::default());
        resolved
    }

    fn forget_failures(&mut self, writes: &[Write]) -> bool {
        if self.attempts.values().all(|attempts| attempts.failed.is_none()) {
            return false;
        }
        let planned: BTreeSet<_> = writes.iter().map(|write| (key(write), deletes(write))).collect();
        let mut resolved = false;
        for (target, attempts) in &mut self.attempts {
            let unneeded = attempts.failed.take_if(|failed| !planned.contains(&(*target, failed.deletes)));
            resolved |= unneeded.is_some();
        }
        resolved
    }

    /// Records a repair beyond the immediate ones. A write that leaves the object as it was is no fight: a webhook changes it on admission,
    /// for example to use a mirror of an image registry.
    fn note(&mut self, write: &Write, world: &World, now: Uptime) {
        let success = self.attempts.get_mut(&key(write)).and_then(|attempts| attempts.success.as_mut());
        let success = success.filter(|success| success.repeats(write));
        let Some(success) = success.filter(|success| success.fight.is_some() || now < success.until()) else { return };
        // A pod that is deleted again and again is not what another manager made of it.
        let is_fought_over = write.target.kind != Kind::Pod || matches!(write.body, Body::Pod(_));
        let generation = generation(write);
        let has_effect = is_fought_over && (generation.is_none() || generation != success.before);
        let next = if success.fight.is_some() || !has_effect { success.until() } else { now + SOON };
        self.next = self.next.into_iter().chain([next]).min();
        if !has_effect {
            return;
        }
        let deed = match write.body {
            Body::Pod(_) => "deleting",
            Body::Delete(_) => "creating",
            _ => "changing",
        };
        let fight = success.fight.get_or_insert_with(|| {
            let (target, concerns) = (write.target.to_string(), write.concerns());
            Box::new(Fight { target, deed, concerns, manager: None, needed: now })
        });
        fight.needed = now;
        fight.manager = co_writer(&write.target, world).or(fight.manager.take());
    }

    pub fn holds(&self, write: &Write, now: Uptime) -> bool {
        let Some(attempts) = self.attempts.get(&key(write)) else { return false };
        let failed = attempts.failed.as_ref().filter(|failed| failed.deletes == deletes(write));
        failed.is_some_and(|failed| now < failed.until) || attempts.hold_repair(write, now)
    }

    /// Returns whether the write had failed before.
    pub fn succeeded(&mut self, write: &Write, now: Uptime) -> bool {
        let attempts = self.attempts.entry(key(write)).or_default();
        let (content, before) = (content(write), generation(write));
        let checked = match &write.body {
            Body::EvictionCheck(uid) => Some((write.target.name.clone(), uid.clone())),
            _ => None,
        };
        match &mut attempts.success {
            Some(success) if success.content == content => {
                (success.at, success.repairs, success.before) = (now, success.repairs + 1, before);
            }
            success => *success = Some(Success { content, at: now, repairs: 0, before, checked, fight: None }),
        }
        attempts.failed.take_if(|failed| failed.deletes == deletes(write)).is_some()
    }

    pub fn failed(&mut self, write: &Write, failure: Failure, now: Uptime) {
        let attempts = self.attempts.entry(key(write)).or_default();
        let before = attempts.failed.as_ref().filter(|failed| failed.deletes == deletes(write));
        let pause = before
            .map_or_else(|| failure.class.retry_after(), |before| (before.pause * 2).min(failure.class.retry_within()));
        let since = before.map_or(now, |before| before.since);
        let (deletes, concerns) = (deletes(write), write.concerns());
        let name = || write.target.name.clone();
        let evicts = matches!(write.body, Body::Eviction(_) | Body::EvictionCheck(_)).then(name);
        let creates = matches!(write.body, Body::Pod(_)).then(name);
        attempts.failed =
            Some(Failed { deletes, evicts, creates, since, concerns, failure, pause, until: now + pause });
    }

    pub fn next(&self) -> Option<Uptime> {
        let failed = self.attempts.values().filter_map(|attempts| Some(attempts.failed.as_ref()?.until));
        let ends = self.fights().map(|fight| fight.needed + MAX_PAUSE);
        failed.chain(ends).chain(self.next).min()
    }

    fn fights(&self) -> impl Iterator<Item = &Fight> {
        self.attempts.values().filter_map(|attempts| attempts.success.as_ref()?.fight.as_deref())
    }
}

impl Attempts {
    fn hold_repair(&self, write: &Write, now: Uptime) -> bool {
        self.success.as_ref().is_some_and(|success| now < success.until() && success.repeats(write))
    }
}

impl Success {
    fn until(&self) -> Uptime {
        let pause = self.repairs.checked_sub(AT_ONCE).map_or(Duration::ZERO, |doublings| {
            FIRST_PAUSE.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(MAX_PAUSE)
        });
        self.at + pause
    }

    /// Whether a write is a repair of this one, after the immediate ones.
    fn repeats(&self, write: &Write) -> bool {
        self.repairs >= AT_ONCE && self.content == content(write)
    }
}

impl Fight {
    fn message(&self) -> String {
        let Self { target, deed, manager, .. } = self;
        let minutes = MAX_PAUSE.as_secs() / 60;
        match manager {
            Some(manager) => format!(
                "field manager {manager:?} keeps {deed} {target}; repairs are delayed by up to {minutes} minutes: stop {manager:?} from doing so"
            ),
            None => format!(
                "a client without a field manager keeps {deed} {target}; find it in the API server's audit log. Repairs are delayed by up to {minutes} minutes"
            ),
        }
    }
}

/// A pod of an operand is identified by its role, because its successor has another name.
fn key(write: &Write) -> u64 {
    write.role.as_ref().map_or_else(|| hash(&write.target), hash)
}

fn deletes(write: &Write) -> bool {
    matches!(write.body, Body::Delete(_))
}

fn generation(write: &Write) -> Option<i64> {
    match &write.body {
        Body::DaemonSet(write) => write.generation,
        _ => None,
    }
}

/// Without what differs each time.
fn content(write: &Write) -> u64 {
    match &write.body {
        Body::DaemonSet(write) => hash(&write.set),
        Body::Spec(write) => hash(&(&write.spec, &write.owner)),
        // A key that is taken over before it is removed has a value that no node has otherwise.
        Body::Labels(write) => {
            let is_taken_over =
                |key: &str, value: &str| keys::NODE_LABELS.contains(&key) && ["", "none"].contains(&value);
            let labels = write.labels.iter().filter(|(key, value)| !is_taken_over(key, value));
            hash(&(&write.uid, labels.collect::<Vec<_>>()))
        }
        Body::Conditions(conditions) => {
            let texts = conditions.iter().map(|(kind, now)| (kind, &now.status, &now.reason, &now.message));
            hash(&texts.collect::<Vec<_>>())
        }
        Body::Pod(_) | Body::Delete(_) => 0,
        body => hash(body),
    }
}

fn co_writer(target: &Target, world: &World) -> Option<Interned> {
    let Target { kind, part, name } = target;
    if *kind == Kind::DaemonSet {
        return world.daemon_sets.get(name)?.added_by.clone();
    }
    let node = world.nodes.get(&name.as_str().into()).filter(|_| *kind == Kind::Node)?;
    match part {
        Part::Labels => node.co_writers.labels.clone(),
        Part::Conditions => node.co_writers.conditions.clone(),
        Part::Taints => node.co_writers.taints.clone(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
