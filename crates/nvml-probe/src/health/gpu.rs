//! The state of one GPU, derived from its findings over time. Pure; time is an argument.
//!
//! An active `Fatal` cause makes the GPU Unhealthy, an active `Warning` Degraded; only recovering causes make it
//! Recovering. What cannot be read changes nothing.

use std::time::Duration;

use gpu_operator_crd::health::{Action, CauseKind, GpuHealth, HealthState, Severity};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{
    cause::Tracked,
    findings::{Before, Finding, findings},
    kind::{Cure, OF_ACCESS, proves_restart},
    readings::Readings,
    rules::Rules,
};

/// The bound of the API type.
const MAX_CAUSES: usize = 8;
/// More than are ever reported, so that the most severe can be chosen, and few enough to bound memory.
const MAX_TRACKED: usize = 32;

/// What one look shows of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told<'a> {
    /// It was read.
    Read {
        /// Its readings.
        readings: &'a Readings,
        /// Its UUID: a different one means another GPU at the same address.
        uuid: Option<&'a str>,
        /// How many NVLinks are active on the node's other GPUs of the same model.
        nvlinks_of_its_like: Option<usize>,
    },
    /// NVML answers, but not for this GPU.
    Refused(CauseKind, &'a str),
    /// NVML does not answer, with the reason; `None` if it was not supposed to be queried.
    Silent(Option<&'a str>),
    /// It was not queried: only XIDs are new.
    NotAsked,
}

/// XIDs of one number that occurred since the previous look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidSeen {
    /// The number.
    pub xid: u16,
    /// How often it occurred.
    pub count: u64,
    /// Where it was found.
    pub source: Source,
    /// The driver's message; may be empty.
    pub said: String,
}

/// Where an XID was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Reported by NVML when it occurred.
    Event,
    /// Logged by the kernel since the previous look; the time of the last one.
    Log(Timestamp),
    /// Logged by the kernel before this process started, which may know of it from its report.
    OldLog(Timestamp),
}

/// One GPU over time.
#[derive(Clone, Debug, Default)]
pub struct Gpu {
    state: HealthState,
    since: Option<Timestamp>,
    causes: Vec<Tracked>,
    /// Consecutive looks that could not read it.
    blind: u32,
    /// Whether it was ever read.
    known: bool,
    uuid: Option<String>,
    energy: Option<u64>,
    energy_mark: Option<u64>,
    restarted_at: Option<Timestamp>,
    replays: Option<(u64, Timestamp)>,
    most_nvlinks: usize,
}

impl Gpu {
    /// Restores the state reported before this process started.
    #[must_use]
    pub fn restore(rules: &Rules, reported: &GpuHealth, uuid: Option<&str>) -> Self {
        Self {
            state: reported.state,
            since: reported.since.as_ref().map(|time| time.0),
            causes: reported.causes.iter().map(|cause| Tracked::restore(rules, cause)).collect(),
            known: reported.state != HealthState::Unknown,
            uuid: uuid.map(str::to_owned),
            energy_mark: reported.energy_mark,
            restarted_at: reported.restarted_at.as_ref().map(|time| time.0),
            ..Self::default()
        }
    }

    /// Returns the state to report.
    #[must_use]
    pub fn health(&self) -> GpuHealth {
        let standing = self.causes.iter().filter(|cause| cause.stands());
        GpuHealth {
            state: self.state,
            action: standing.map(|cause| cause.finding.action).max().unwrap_or(Action::None),
            since: self.since.map(Time),
            causes: self.causes.iter().filter_map(Tracked::cause).take(MAX_CAUSES).collect(),
            energy_mark: self.energy_mark,
            restarted_at: self.restarted_at.map(Time),
        }
    }

    /// Records that the driver was reloaded or the node rebooted.
    pub fn restarted(&mut self, now: Timestamp) {
        let mut cured = false;
        for cause in &mut self.causes {
            cured |= cause.restarted();
        }
        if cured {
            self.restarted_at = Some(now);
        }
    }

    /// Evaluates one look and the XIDs that occurred since the previous one.
    pub fn step(&mut self, rules: &Rules, told: &Told<'_>, xids: &[XidSeen], now: Timestamp) {
        self.follow(rules);
        let marked = self.restart_causes();
        match told {
            Told::Read { readings, uuid, nvlinks_of_its_like } => {
                self.replaced(*uuid);
                self.read(rules, readings, *nvlinks_of_its_like, xids, now);
            }
            Told::Refused(kind, evidence) => {
                self.blind = self.blind.saturating_add(1);
                self.found(rules, Finding::of(rules, *kind, *evidence), now);
                // NVML itself does answer.
                self.clear(rules, CauseKind::NotAnswering);
                self.hear(rules, xids, now);
            }
            Told::Silent(why) => {
                self.blind = self.blind.saturating_add(1);
                self.found(rules, why.and_then(|why| Finding::of(rules, CauseKind::NotAnswering, why)), now);
                self.hear(rules, xids, now);
            }
            Told::NotAsked => self.hear(rules, xids, now),
        }
        self.mark(marked);
        self.causes.sort_by_key(Tracked::rank);
        self.causes.truncate(MAX_TRACKED);
        let state = self.judge(rules);
        if state != self.state || self.since.is_none() {
            self.state = state;
            self.since = Some(now);
        }
    }

    fn read(
        &mut self,
        rules: &Rules,
        readings: &Readings,
        nvlinks_of_its_like: Option<usize>,
        xids: &[XidSeen],
        now: Timestamp,
    ) {
        self.blind = 0;
        self.known = true;
        let before = self.before(readings, nvlinks_of_its_like, now);
        let mut seen = findings(rules, readings, &before);
        seen.clear.extend(OF_ACCESS);

        let ended = |cause: &Tracked| {
            cause.stands() && proves_restart(cause.finding.kind) && seen.clear.contains(&cause.finding.kind)
        };
        // Without persistence mode, the driver resets the counter whenever the last program closes the GPU.
        let began_anew = readings.persistence == Some(true)
            && self.energy_mark.zip(readings.energy_millijoules).is_some_and(|(mark, now)| now < mark);
        if began_anew || self.causes.iter().any(ended) {
            self.restarted(now);
            self.energy_mark = None;
        }
        self.energy = readings.energy_millijoules;

        self.hear(rules, xids, now);
        for kind in &seen.clear {
            self.clear(rules, *kind);
        }
        let found: Vec<CauseKind> = seen.found.iter().map(|finding| finding.kind).collect();
        for finding in seen.found {
            self.found(rules, Some(finding), now);
        }
        self.rest(rules, &seen.clear, &found);
    }

    /// Updates the causes that this look did not cover: XIDs that did not occur since the previous reading, and causes
    /// that can no longer be read.
    fn rest(&mut self, rules: &Rules, clear: &[CauseKind], found: &[CauseKind]) {
        self.causes.retain_mut(|cause| match cause.finding.xid {
            Some(_) if std::mem::take(&mut cause.is_fresh) => true,
            Some(_) => cause.unseen(rules, cause.finding.cure == Cure::Passing),
            None if clear.contains(&cause.finding.kind) || found.contains(&cause.finding.kind) => true,
            None => cause.unseen(rules, false),
        });
    }

    /// Evaluates XIDs, except logged ones that are already resolved.
    fn hear(&mut self, rules: &Rules, xids: &[XidSeen], now: Timestamp) {
        for seen in xids {
            let Some(mut finding) = Finding::of_xid(rules, seen.xid, seen.count, &seen.said) else { continue };
            let known = self.causes.iter().find(|cause| cause.is(&finding));
            let before = known.and_then(|cause| cause.finding.count).unwrap_or_default();
            finding.count = Some(before.saturating_add(seen.count));
            if let Source::Log(at) | Source::OldLog(at) = seen.source {
                let forgotten = finding.cure == Cure::Passing && age(at, now) > rules.clean_period();
                let over = self.restarted_at.is_some_and(|restarted| at <= restarted);
                if over || forgotten {
                    continue;
                }
            }
            match seen.source {
                Source::OldLog(_) if known.is_some_and(|cause| cause.stands() || finding.cure == Cure::Passing) => {}
                Source::OldLog(at) | Source::Log(at) => self.found(rules, Some(finding), at),
                Source::Event => self.found(rules, Some(finding), now),
            }
        }
    }

    fn found(&mut self, rules: &Rules, finding: Option<Finding>, now: Timestamp) {
        let Some(finding) = finding else { return };
        let needed = if finding.confirm { rules.confirm_intervals() } else { 1 };
        match self.causes.iter_mut().find(|cause| cause.is(&finding)) {
            Some(cause) => cause.found(finding, needed, now),
            None => self.causes.push(Tracked::new(finding, needed, now)),
        }
    }

    fn clear(&mut self, rules: &Rules, kind: CauseKind) {
        self.causes.retain_mut(|cause| cause.finding.kind != kind || cause.unseen(rules, true));
    }

    /// Applies rules that may have changed.
    fn follow(&mut self, rules: &Rules) {
        self.causes.retain_mut(|cause| {
            let finding = &mut cause.finding;
            let anew = match finding.xid {
                Some(xid) => Finding::of_xid(rules, xid, 0, "").map(|anew| (anew.severity, anew.action, anew.cure)),
                None => rules
                    .severity_over(finding.kind, finding.severity)
                    .map(|severity| (severity, finding.action, finding.cure)),
            };
            let Some(anew) = anew else { return false };
            (finding.severity, finding.action, finding.cure) = anew;
            true
        });
    }

    fn replaced(&mut self, uuid: Option<&str>) {
        let Some(uuid) = uuid else { return };
        if self.uuid.as_deref().is_some_and(|known| known != uuid) {
            *self = Self::default();
        }
        self.uuid = Some(uuid.to_owned());
    }

    fn before(&mut self, readings: &Readings, of_its_like: Option<usize>, now: Timestamp) -> Before {
        let replays = self.replays.map(|(count, at)| (count, age(at, now)));
        self.replays = readings.pcie.replays.map(|count| (count, now));
        let active = readings.active_nvlinks().unwrap_or_default();
        self.most_nvlinks = self.most_nvlinks.max(active);
        // A GPU without active links may have no bridge, unlike its neighbours.
        let of_its_like = of_its_like.filter(|_| active > 0).unwrap_or_default();
        let expected = self.most_nvlinks.max(of_its_like);
        Before { replays, nvlinks: (expected > 0).then_some(expected) }
    }

    fn restart_causes(&self) -> usize {
        self.causes.iter().filter(|cause| cause.stands() && cause.finding.cure == Cure::Restart).count()
    }

    /// Stores the energy counter when a cause appears that a restart resolves.
    fn mark(&mut self, before: usize) {
        match self.restart_causes() {
            0 => self.energy_mark = None,
            now if now > before || self.energy_mark.is_none() => self.energy_mark = self.energy,
            _ => {}
        }
    }

    fn judge(&self, rules: &Rules) -> HealthState {
        let any = |severity, is: fn(&Tracked) -> bool| {
            self.causes.iter().any(|cause| cause.finding.severity == severity && is(cause))
        };
        if any(Severity::Fatal, Tracked::stands) {
            HealthState::Unhealthy
        } else if !self.known || self.blind >= rules.confirm_intervals() {
            HealthState::Unknown
        } else if any(Severity::Fatal, Tracked::recovers) {
            HealthState::Recovering
        } else if any(Severity::Warning, Tracked::stands) {
            HealthState::Degraded
        } else if any(Severity::Warning, Tracked::recovers) {
            HealthState::Recovering
        } else {
            HealthState::Healthy
        }
    }
}

fn age(at: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(at).try_into().unwrap_or_default()
}
