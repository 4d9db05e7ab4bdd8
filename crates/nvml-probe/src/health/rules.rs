//! The rules of a GpuNode over the defaults.

use std::time::Duration;

use gpu_operator_crd::health::{Action, CauseKind, HealthRules, Severity, Thresholds};

use super::{
    kind::nature,
    xid::{self, Class, Meaning},
};

/// GPUd reads once a minute, NVIDIA's device plugin hears of XIDs within 5 s; in between.
const INTERVAL: Duration = Duration::from_secs(30);
/// One reading of a clock or link may have met it while it changed.
const CONFIRM_INTERVALS: u32 = 2;
/// Five minutes at the default interval: half of the time over which GPUd averages slowdowns.
const CLEAN_INTERVALS: u32 = 10;
/// At the temperature at which the GPU slows down.
const BELOW_SLOWDOWN: u32 = 0;
/// The last degrees before the GPU takes itself off: no tool's value. Slowdown and shutdown are three (T4) to five (H100)
/// degrees apart, and what lies between is a warning.
const BELOW_SHUTDOWN: u32 = 2;
/// DCGM fails a GPU at the first uncorrectable error since the driver was loaded.
const UNCORRECTABLE_ECC: u64 = 1;
/// DCGM warns from 512 rows on; Azure's health checks fail a node beyond.
const REMAPPED_ROWS: u64 = 512;
/// DCGM fails a GPU from 63 pages on; 64 is the most that can be retired.
const RETIRED_PAGES: u64 = 63;
/// DCGM's limit of replays in a thousand minutes for one lane, by generation from 1 on.
const REPLAYS_PER_LANE: [u64; 6] = [150, 300, 480, 960, 1920, 3840];

/// By what the GPUs of a node are judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules(HealthRules);

impl From<HealthRules> for Rules {
    fn from(rules: HealthRules) -> Self {
        Self(rules)
    }
}

impl Rules {
    /// Pause between two readings; never nothing.
    #[must_use]
    pub fn interval(&self) -> Duration {
        let given = self.0.interval.map(Duration::from);
        given.filter(|interval| !interval.is_zero()).unwrap_or(INTERVAL)
    }

    /// Readings in a row that make a cause of what comes and goes.
    #[must_use]
    pub fn confirm_intervals(&self) -> u32 {
        self.0.confirm_intervals.unwrap_or(CONFIRM_INTERVALS).max(1)
    }

    /// Readings in a row that make an end of what is dealt with.
    #[must_use]
    pub fn clean_intervals(&self) -> u32 {
        self.0.clean_intervals.unwrap_or(CLEAN_INTERVALS).max(1)
    }

    /// Readings in a row after which what passes by itself counts as dealt with: half of the way to its end, so that what
    /// comes and goes every minute is not news every minute.
    #[must_use]
    pub fn calm_intervals(&self) -> u32 {
        self.clean_intervals().div_ceil(2).max(self.confirm_intervals())
    }

    /// How long a cause that passes by itself is remembered: that many clean readings take.
    #[must_use]
    pub fn clean_period(&self) -> Duration {
        self.interval().saturating_mul(self.clean_intervals())
    }

    /// What an XID means.
    #[must_use]
    pub fn xid(&self, xid: u16) -> Meaning {
        let known = xid::meaning(xid);
        let lists = &self.0.xids;
        let class = if lists.fatal.contains(&xid) {
            Class::Fatal
        } else if lists.warn.contains(&xid) {
            Class::Warn
        } else if lists.ignore.contains(&xid) {
            Class::Ignore
        } else {
            known.class
        };
        // What must not be used has to be restarted, even if the catalogue thinks less of it.
        let action = if class == Class::Fatal { known.action.max(Action::DrainAndReset) } else { known.action };
        Meaning { class, action, ..known }
    }

    /// How grave a kind of cause is; nothing where it is to be left out. The default is the kind's own.
    #[must_use]
    pub fn severity(&self, kind: CauseKind) -> Option<Severity> {
        self.severity_over(kind, nature(kind).severity)
    }

    /// As [`Self::severity`], over a default that depends on the reading.
    #[must_use]
    pub fn severity_over(&self, kind: CauseKind, default: Severity) -> Option<Severity> {
        let lists = &self.0.causes;
        if lists.fatal.contains(&kind) {
            Some(Severity::Fatal)
        } else if lists.warn.contains(&kind) {
            Some(Severity::Warning)
        } else if lists.ignore.contains(&kind) {
            None
        } else {
            Some(default)
        }
    }

    /// Degrees below the slowdown temperature from which on a GPU is too hot.
    #[must_use]
    pub fn below_slowdown(&self) -> i64 {
        self.thresholds().below_slowdown_celsius.unwrap_or(BELOW_SLOWDOWN).into()
    }

    /// Degrees below the shutdown temperature from which on that is fatal.
    #[must_use]
    pub fn below_shutdown(&self) -> i64 {
        self.thresholds().below_shutdown_celsius.unwrap_or(BELOW_SHUTDOWN).into()
    }

    /// Uncorrectable memory errors from which on they are a cause.
    #[must_use]
    pub fn uncorrectable_ecc(&self) -> u64 {
        self.thresholds().uncorrectable_ecc_errors.unwrap_or(UNCORRECTABLE_ECC)
    }

    /// Replaced rows from which on they are a cause.
    #[must_use]
    pub fn remapped_rows(&self) -> u64 {
        self.thresholds().remapped_rows.unwrap_or(REMAPPED_ROWS)
    }

    /// Retired pages from which on they are a cause.
    #[must_use]
    pub fn retired_pages(&self) -> u64 {
        self.thresholds().retired_pages.unwrap_or(RETIRED_PAGES)
    }

    /// Replays a minute beyond which they are a cause, for a link of that generation and width.
    #[must_use]
    pub fn replays_per_minute(&self, generation: u32, width: u32) -> u64 {
        self.thresholds().pcie_replays_per_minute.unwrap_or_else(|| {
            let place = usize::try_from(generation.max(1) - 1).unwrap_or(usize::MAX);
            let per_lane = REPLAYS_PER_LANE[place.min(REPLAYS_PER_LANE.len() - 1)];
            per_lane * u64::from(width.clamp(1, 64)) / 1000
        })
    }

    fn thresholds(&self) -> &Thresholds {
        &self.0.thresholds
    }
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::health::{CauseClasses, XidClasses};

    use super::*;

    #[test]
    fn without_rules_the_defaults_hold() {
        let rules = Rules::default();
        assert_eq!((rules.interval(), rules.confirm_intervals(), rules.clean_intervals()), (INTERVAL, 2, 10));
        assert_eq!(rules.xid(79).class, Class::Fatal);
        assert_eq!(rules.severity(CauseKind::RowRemapPending), Some(Severity::Warning));
        // Sixteen lanes of the fourth generation: 16 times 0.96.
        assert_eq!(rules.replays_per_minute(4, 16), 15);
        assert_eq!(rules.replays_per_minute(9, 16), 61);
        assert_eq!(rules.replays_per_minute(0, 0), 0);
    }

    #[test]
    fn of_several_lists_the_gravest_holds() {
        let rules = Rules::from(HealthRules {
            xids: XidClasses { ignore: vec![79, 31, 48], warn: vec![79, 31], fatal: vec![31] },
            causes: CauseClasses {
                ignore: vec![CauseKind::PowerBrake, CauseKind::NvLinkDown],
                warn: vec![CauseKind::NvLinkDown],
                fatal: vec![CauseKind::Overheating],
            },
            ..HealthRules::default()
        });
        assert_eq!([79, 31, 48].map(|xid| rules.xid(xid).class), [Class::Warn, Class::Fatal, Class::Ignore]);
        assert_eq!(rules.xid(31).action, Action::DrainAndReset);
        assert_eq!(rules.severity(CauseKind::PowerBrake), None);
        assert_eq!(rules.severity(CauseKind::NvLinkDown), Some(Severity::Warning));
        assert_eq!(rules.severity_over(CauseKind::Overheating, Severity::Warning), Some(Severity::Fatal));
    }
}
