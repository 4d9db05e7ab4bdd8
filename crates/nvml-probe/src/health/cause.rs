//! The lifecycle of one cause.
//!
//! ```text
//!               found, as often as its kind needs            a restart of the GPU, or no reading shows it any more
//!   (nothing) ──────────────────────────────────▶ standing ────────────────────────────────────────────────┐
//!       ▲                                             ▲                                                     ▼
//!       └──────── clean readings in a row ────────────┴──────────────────── found again ─────────── recovering
//! ```

use gpu_operator_crd::health::{Cause, CauseKind};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{
    findings::Finding,
    rules::{ACCESS_KINDS, Cure, Rules, defaults},
};

/// The bound of the API type.
const MAX_EVIDENCE: usize = 256;
/// The greatest number that the API server reads exactly.
pub(super) const MAX_NUMBER: u64 = i64::MAX.unsigned_abs();

#[derive(Clone, Debug)]
pub(super) struct TrackedCause {
    pub(super) finding: Finding,
    /// Whether it was found since the last reading.
    pub(super) is_fresh: bool,
    since: Timestamp,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Found this many times in a row; not a cause yet.
    Suspected(u32),
    /// A cause; absent from this many readings in a row.
    Standing(u32),
    /// Dealt with; absent from this many readings in a row, or found again this many times.
    Recovering { clean: u32, found: u32 },
}

impl TrackedCause {
    /// Creates a cause for a first finding, which becomes a cause after it was found `needed` times.
    pub(super) fn new(finding: Finding, needed: u32, now: Timestamp) -> Self {
        let phase = if needed <= 1 { Phase::Standing(0) } else { Phase::Suspected(1) };
        Self { finding, is_fresh: true, since: now, phase }
    }

    /// Restores a reported cause, unless only another version of the probe knows its kind.
    pub(super) fn restore(rules: &Rules, cause: &Cause) -> Option<Self> {
        let kind = cause.kind.known()?;
        let finding = cause.xid.filter(|_| kind == CauseKind::Xid);
        let finding = finding.and_then(|xid| Finding::of_xid(rules, xid, 0, "")).unwrap_or_else(|| {
            let defaults = defaults(kind);
            Finding {
                kind,
                xid: cause.xid,
                severity: cause.severity,
                action: defaults.action,
                cure: defaults.cure,
                confirm: defaults.confirm,
                count: None,
                evidence: String::new(),
            }
        });
        let finding = Finding { count: cause.count, evidence: cause.evidence.clone(), ..finding };
        let phase = if cause.recovering { Phase::Recovering { clean: 0, found: 0 } } else { Phase::Standing(0) };
        Some(Self { finding, is_fresh: false, since: cause.since.0, phase })
    }

    /// Returns the cause to report; `None` while it is only suspected.
    pub(super) fn cause(&self) -> Option<Cause> {
        let is_reported = !matches!(self.phase, Phase::Suspected(_));
        is_reported.then(|| Cause {
            kind: self.finding.kind.into(),
            severity: self.finding.severity,
            xid: self.finding.xid,
            count: self.finding.count.map(bucket),
            evidence: self.finding.evidence.chars().take(MAX_EVIDENCE).collect(),
            since: Time(self.since),
            recovering: !self.stands(),
        })
    }

    pub(super) fn is(&self, finding: &Finding) -> bool {
        self.finding.kind == finding.kind && self.finding.xid == finding.xid
    }

    pub(super) fn stands(&self) -> bool {
        matches!(self.phase, Phase::Standing(_))
    }

    pub(super) fn recovers(&self) -> bool {
        matches!(self.phase, Phase::Recovering { .. })
    }

    /// Records a restart of the GPU. Returns whether the restart resolved the cause.
    pub(super) fn restarted(&mut self) -> bool {
        let cured = self.stands() && self.finding.cure == Cure::Restart;
        if cured {
            self.phase = Phase::Recovering { clean: 0, found: 0 };
        }
        cured
    }

    /// The sort key: active before recovering, then the most severe, then the oldest.
    pub(super) fn rank(&self) -> impl Ord + use<> {
        let phase = match self.phase {
            Phase::Standing(_) => 0,
            Phase::Recovering { .. } => 1,
            Phase::Suspected(_) => 2,
        };
        let severity = std::cmp::Reverse(self.finding.severity);
        (phase, severity, self.since, self.finding.kind, self.finding.xid)
    }

    /// Records that it was found again; it becomes active after `needed` findings.
    pub(super) fn found(&mut self, finding: Finding, needed: u32, now: Timestamp) {
        let phase = match self.phase {
            Phase::Suspected(times) if times + 1 < needed => Phase::Suspected(times + 1),
            Phase::Recovering { found, .. } if found + 1 < needed => Phase::Recovering { clean: 0, found: found + 1 },
            _ => Phase::Standing(0),
        };
        if matches!(self.phase, Phase::Suspected(_)) {
            self.since = now;
        }
        // A reading at the boundary between two severities would otherwise change the report at every other look.
        let severity = finding.severity.max(self.finding.severity);
        // The evidence, and with it the report, stays unchanged as long as it means the same to a reader.
        let same = self.stands()
            && self.finding.severity == severity
            && self.finding.action == finding.action
            && self.finding.count.map(bucket) == finding.count.map(bucket);
        let evidence = if same { std::mem::take(&mut self.finding.evidence) } else { finding.evidence };
        self.finding = Finding { severity, evidence, ..finding };
        self.phase = phase;
        self.is_fresh = true;
    }

    /// Records a reading without the finding; `is_clear` if the reading proves its absence. Returns whether to keep the
    /// cause.
    pub(super) fn unseen(&mut self, rules: &Rules, is_clear: bool) -> bool {
        // A passing cause may soon be back. A cause that a restart or a replacement removes is gone, and a GPU that
        // answers is accessible.
        let passing = self.finding.cure == Cure::Passing && !ACCESS_KINDS.contains(&self.finding.kind);
        let needed = if passing { rules.calm_intervals() } else { 1 };
        match self.phase {
            Phase::Suspected(_) => return !is_clear,
            Phase::Standing(_) if !is_clear => {}
            Phase::Standing(clean) if clean + 1 < needed => self.phase = Phase::Standing(clean + 1),
            Phase::Standing(clean) => self.phase = Phase::Recovering { clean: clean + 1, found: 0 },
            Phase::Recovering { clean, .. } if clean + 1 < rules.clean_intervals() => {
                self.phase = Phase::Recovering { clean: clean + 1, found: 0 };
            }
            Phase::Recovering { .. } => return false,
        }
        true
    }
}

/// Rounds down to 1, 2 or 5 times a power of ten.
fn bucket(count: u64) -> u64 {
    let (count, mut unit) = (count.min(MAX_NUMBER), 1);
    while count / 10 >= unit {
        unit *= 10;
    }
    match count / unit {
        0 => 0,
        1 => unit,
        2..=4 => 2 * unit,
        _ => 5 * unit,
    }
}
