//! The state of one GPU, derived from its findings over time. Pure; time is an argument.
//!
//! An active `Fatal` cause makes the GPU Unhealthy, an active `Warning` Degraded; only recovering causes make it
//! Recovering. Values that cannot be read change nothing.

use std::time::Duration;

use gpu_host::{
    nvml::readings::Readings,
    observe::kernel_log::{XidCount, XidSource, XidsByGpu},
};
use gpu_operator_crd::health::{Action, CauseKind, GpuHealth, HealthState, Severity};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{
    cause::{MAX_NUMBER, TrackedCause},
    findings::{Baseline, Finding, findings},
    rules::{ACCESS_KINDS, Cure, Rules, proves_restart},
};

/// The bound of the API type.
const MAX_CAUSES: usize = 8;
/// More than are ever reported, so that the most severe can be chosen, and few enough to bound memory.
const MAX_TRACKED: usize = 32;
/// The most XIDs that are evaluated at a time; there are some 150 numbers.
const MAX_XIDS: usize = 1024;

/// What one look shows of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuObservation<'a> {
    Read {
        readings: &'a Readings,
        /// Its UUID: a different one means another GPU at the same address.
        uuid: Option<&'a str>,
        /// How many NVLinks are active on the node's other GPUs of the same model.
        peer_nvlinks: Option<usize>,
    },
    /// NVML answers, but not for this GPU.
    NotOpened(CauseKind, &'a str),
    /// NVML does not answer, with the reason; `None` if it was not supposed to be queried.
    NotAnswering(Option<&'a str>),
    /// It was not queried: only XIDs are new.
    NotQueried,
}

#[derive(Clone, Debug, Default)]
pub struct Gpu {
    state: HealthState,
    since: Option<Timestamp>,
    causes: Vec<TrackedCause>,
    /// Consecutive looks that could not read it.
    failed_reads: u32,
    known: bool,
    uuid: Option<String>,
    /// The latest reading in persistence mode.
    energy: Option<u64>,
    energy_mark: Option<u64>,
    restarted_at: Option<Timestamp>,
    replays: Option<(u64, Timestamp)>,
    most_nvlinks: usize,
}

impl Gpu {
    pub fn restore(rules: &Rules, reported: &GpuHealth, uuid: Option<&str>) -> Self {
        Self {
            state: reported.state,
            since: reported.since.as_ref().map(|time| time.0),
            causes: reported.causes.iter().filter_map(|cause| TrackedCause::restore(rules, cause)).collect(),
            known: reported.state != HealthState::Unknown,
            uuid: uuid.map(str::to_owned),
            energy_mark: reported.energy_mark,
            restarted_at: reported.restarted_at.as_ref().map(|time| time.0),
            ..Self::default()
        }
    }

    pub fn health(&self) -> GpuHealth {
        let standing = self.causes.iter().filter(|cause| cause.stands());
        GpuHealth {
            state: self.state,
            action: standing.map(|cause| cause.finding.action).max().unwrap_or(Action::None).into(),
            since: self.since.map(Time),
            causes: self.causes.iter().filter_map(TrackedCause::cause).take(MAX_CAUSES).collect(),
            energy_mark: self.energy_mark.map(|mark| mark.min(MAX_NUMBER)),
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
    pub fn step(&mut self, rules: &Rules, observation: &GpuObservation<'_>, xids: &[XidCount], now: Timestamp) {
        self.apply_rules(rules);
        let marked = self.restart_causes();
        match observation {
            GpuObservation::Read { readings, uuid, peer_nvlinks } => {
                self.reset_if_replaced(*uuid);
                self.read(rules, readings, *peer_nvlinks, xids, now);
            }
            GpuObservation::NotOpened(kind, evidence) => {
                self.failed_reads = self.failed_reads.saturating_add(1);
                self.found(rules, Finding::of(rules, *kind, *evidence), now);
                // NVML itself does answer.
                self.clear(rules, CauseKind::NotAnswering);
                self.add_xids(rules, xids, now);
            }
            GpuObservation::NotAnswering(why) => {
                self.failed_reads = self.failed_reads.saturating_add(1);
                self.found(rules, why.and_then(|why| Finding::of(rules, CauseKind::NotAnswering, why)), now);
                self.add_xids(rules, xids, now);
            }
            GpuObservation::NotQueried => self.add_xids(rules, xids, now),
        }
        self.conclude(rules, marked, now);
    }

    /// `marked` is the number of causes before that a restart resolves.
    fn conclude(&mut self, rules: &Rules, marked: usize, now: Timestamp) {
        self.store_energy_mark(marked);
        self.causes.sort_by_key(TrackedCause::rank);
        self.causes.truncate(MAX_TRACKED);
        let state = self.evaluate_state(rules);
        if state != self.state || self.since.is_none() {
            self.state = state;
            self.since = Some(now);
        }
    }

    fn read(
        &mut self,
        rules: &Rules,
        readings: &Readings,
        peer_nvlinks: Option<usize>,
        xids: &[XidCount],
        now: Timestamp,
    ) {
        self.failed_reads = 0;
        self.known = true;
        let before = self.baseline(readings, peer_nvlinks, now);
        let mut seen = findings(rules, readings, &before);
        seen.clear.extend(ACCESS_KINDS);

        let ended = |cause: &TrackedCause| {
            cause.stands() && proves_restart(cause.finding.kind) && seen.clear.contains(&cause.finding.kind)
        };
        // Without persistence mode, the driver resets the counter whenever the last program closes the GPU.
        let energy = readings.energy_millijoules.filter(|_| readings.persistence == Some(true));
        // The mark may be older than the previous reading: it is reported only when a cause appears.
        let highest = self.energy.max(self.energy_mark);
        let counter_reset = highest.zip(energy).is_some_and(|(highest, now)| now < highest);
        if counter_reset || self.causes.iter().any(ended) {
            self.restarted(now);
            self.energy_mark = None;
        }
        self.energy = energy.or(self.energy);

        self.add_xids(rules, xids, now);
        for kind in &seen.clear {
            self.clear(rules, *kind);
        }
        let found: Vec<CauseKind> = seen.found.iter().map(|finding| finding.kind).collect();
        for finding in seen.found {
            self.found(rules, Some(finding), now);
        }
        self.update_uncovered(rules, &seen.clear, &found);
    }

    /// Updates the causes that this look did not cover: XIDs that did not occur since the previous reading, and causes
    /// that can no longer be read.
    fn update_uncovered(&mut self, rules: &Rules, clear: &[CauseKind], found: &[CauseKind]) {
        self.causes.retain_mut(|cause| match cause.finding.xid {
            Some(_) if std::mem::take(&mut cause.is_fresh) => true,
            Some(_) => cause.unseen(rules, cause.finding.cure == Cure::Passing),
            None if clear.contains(&cause.finding.kind) || found.contains(&cause.finding.kind) => true,
            None => cause.unseen(rules, false),
        });
    }

    /// Evaluates XIDs, except logged ones that are already resolved.
    fn add_xids(&mut self, rules: &Rules, xids: &[XidCount], now: Timestamp) {
        for seen in xids.iter().take(MAX_XIDS) {
            let finding = Finding::of_xid(rules, seen.xid, seen.count, &seen.message);
            self.add_event(rules, finding, seen, now);
        }
    }

    /// Evaluates the fatal errors of the `NVSwitches` on which the GPU depends.
    pub fn add_switch_errors(&mut self, rules: &Rules, errors: &XidsByGpu, now: Timestamp) {
        let marked = self.restart_causes();
        let errors = errors.iter().flat_map(|(switch, seen)| seen.iter().map(move |seen| (switch, seen)));
        for (switch, seen) in errors.take(MAX_XIDS) {
            self.add_event(rules, Finding::of_switch(rules, switch, seen), seen, now);
        }
        self.conclude(rules, marked, now);
    }

    fn add_event(&mut self, rules: &Rules, finding: Option<Finding>, seen: &XidCount, now: Timestamp) {
        let Some(mut finding) = finding else { return };
        let known = self.causes.iter().find(|cause| cause.is(&finding));
        let before = known.and_then(|cause| cause.finding.count).unwrap_or_default();
        finding.count = Some(before.saturating_add(seen.count));
        if let XidSource::KernelLog(at) | XidSource::EarlierKernelLog(at) = seen.source {
            let forgotten = finding.cure == Cure::Passing && age(at, now) > rules.clean_period();
            let over = self.restarted_at.is_some_and(|restarted| at <= restarted);
            if over || forgotten {
                return;
            }
        }
        match seen.source {
            XidSource::EarlierKernelLog(_)
                if known.is_some_and(|cause| cause.stands() || finding.cure == Cure::Passing) => {}
            XidSource::EarlierKernelLog(at) | XidSource::KernelLog(at) => self.found(rules, Some(finding), at),
            XidSource::Nvml => self.found(rules, Some(finding), now),
        }
    }

    fn found(&mut self, rules: &Rules, finding: Option<Finding>, now: Timestamp) {
        let Some(finding) = finding else { return };
        let needed = if finding.confirm { rules.confirm_intervals() } else { 1 };
        match self.causes.iter_mut().find(|cause| cause.is(&finding)) {
            Some(cause) => cause.found(finding, needed, now),
            None => self.causes.push(TrackedCause::new(finding, needed, now)),
        }
    }

    fn clear(&mut self, rules: &Rules, kind: CauseKind) {
        self.causes.retain_mut(|cause| cause.finding.kind != kind || cause.unseen(rules, true));
    }

    fn apply_rules(&mut self, rules: &Rules) {
        self.causes.retain_mut(|cause| {
            let finding = &mut cause.finding;
            let current = match finding.xid.filter(|_| finding.kind == CauseKind::Xid) {
                Some(xid) => {
                    Finding::of_xid(rules, xid, 0, "").map(|current| (current.severity, current.action, current.cure))
                }
                None => rules
                    .severity_over(finding.kind, finding.severity)
                    .map(|severity| (severity, finding.action, finding.cure)),
            };
            let Some(current) = current else { return false };
            (finding.severity, finding.action, finding.cure) = current;
            true
        });
    }

    fn reset_if_replaced(&mut self, uuid: Option<&str>) {
        let Some(uuid) = uuid else { return };
        if self.uuid.as_deref().is_some_and(|known| known != uuid) {
            *self = Self::default();
        }
        self.uuid = Some(uuid.to_owned());
    }

    fn baseline(&mut self, readings: &Readings, peer_nvlinks: Option<usize>, now: Timestamp) -> Baseline {
        let replays = self.replays.map(|(count, at)| (count, age(at, now)));
        self.replays = readings.pcie.replays.map(|count| (count, now));
        let active = readings.active_nvlinks().unwrap_or_default();
        self.most_nvlinks = self.most_nvlinks.max(active);
        // A GPU without active links may have no bridge, unlike its neighbours.
        let peer_nvlinks = peer_nvlinks.filter(|_| active > 0).unwrap_or_default();
        let expected = self.most_nvlinks.max(peer_nvlinks);
        Baseline { replays, nvlinks: (expected > 0).then_some(expected) }
    }

    fn restart_causes(&self) -> usize {
        self.causes.iter().filter(|cause| cause.stands() && cause.finding.cure == Cure::Restart).count()
    }

    /// Stores the energy counter when a cause appears that a restart resolves.
    fn store_energy_mark(&mut self, before: usize) {
        match self.restart_causes() {
            0 => self.energy_mark = None,
            now if now > before || self.energy_mark.is_none() => self.energy_mark = self.energy,
            _ => {}
        }
    }

    fn evaluate_state(&self, rules: &Rules) -> HealthState {
        let any = |severity, is: fn(&TrackedCause) -> bool| {
            self.causes.iter().any(|cause| cause.finding.severity == severity && is(cause))
        };
        if any(Severity::Fatal, TrackedCause::stands) {
            HealthState::Unhealthy
        } else if !self.known || self.failed_reads >= rules.confirm_intervals() {
            HealthState::Unknown
        } else if any(Severity::Fatal, TrackedCause::recovers) {
            HealthState::Recovering
        } else if any(Severity::Warning, TrackedCause::stands) {
            HealthState::Degraded
        } else if any(Severity::Warning, TrackedCause::recovers) {
            HealthState::Recovering
        } else {
            HealthState::Healthy
        }
    }
}

fn age(at: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(at).try_into().unwrap_or_default()
}
