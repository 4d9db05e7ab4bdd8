//! A GpuNode's health rules, with the defaults of each kind of cause: its severity, the recommended action and how it ends.

use std::time::Duration;

use gpu_operator_crd::health::{Action, CauseKind, HealthRules, Severity, Thresholds};

use super::xid::{self, Class, Meaning};

/// GPUd reads once a minute, NVIDIA's device plugin receives XIDs within 5 s; this is in between.
const INTERVAL: Duration = Duration::from_secs(30);
/// A single reading of a clock or link may have been taken while it changed.
const CONFIRM_INTERVALS: u32 = 2;
/// Five minutes at the default interval: half of the period over which GPUd averages slowdowns.
const CLEAN_INTERVALS: u32 = 10;
const BELOW_SLOWDOWN: u32 = 0;
/// The last degrees before the GPU shuts down; not taken from another tool. Slowdown and shutdown are three (T4) to
/// five (H100) degrees apart, and the range between is a warning.
const BELOW_SHUTDOWN: u32 = 2;
/// DCGM fails a GPU at the first uncorrectable error since the driver was loaded.
const UNCORRECTABLE_ECC: u64 = 1;
/// DCGM warns from 512 rows on; Azure's health checks fail a node beyond that.
const REMAPPED_ROWS: u64 = 512;
/// DCGM fails a GPU from 63 pages on; at most 64 can be retired.
const RETIRED_PAGES: u64 = 63;
/// DCGM's limit of replays per thousand minutes and lane, by generation from 1 on.
const REPLAYS_PER_LANE: [u64; 6] = [150, 300, 480, 960, 1920, 3840];

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules(HealthRules);

impl From<HealthRules> for Rules {
    fn from(rules: HealthRules) -> Self {
        Self(rules)
    }
}

impl Rules {
    /// Returns the pause between two readings, which is never zero.
    pub fn interval(&self) -> Duration {
        let given = self.0.interval.map(Duration::from);
        given.filter(|interval| !interval.is_zero()).unwrap_or(INTERVAL)
    }

    pub fn confirm_intervals(&self) -> u32 {
        self.0.confirm_intervals.unwrap_or(CONFIRM_INTERVALS).max(1)
    }

    pub fn clean_intervals(&self) -> u32 {
        self.0.clean_intervals.unwrap_or(CLEAN_INTERVALS).max(1)
    }

    /// How many clean readings in a row deal with a passing cause: half of those that end it, so that an intermittent
    /// condition does not change the report every minute.
    pub fn calm_intervals(&self) -> u32 {
        self.clean_intervals().div_ceil(2).max(self.confirm_intervals())
    }

    /// Returns how long a passing cause is remembered: the duration of the clean readings that end it.
    pub fn clean_period(&self) -> Duration {
        self.interval().saturating_mul(self.clean_intervals())
    }

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
        // An unusable GPU has to be restarted, even if the catalogue recommends less.
        let action = if class == Class::Fatal { known.action.max(Action::DrainAndReset) } else { known.action };
        Meaning { class, action, ..known }
    }

    /// Returns the severity of a kind of cause, `None` if it is ignored. Defaults to that of the kind.
    pub fn severity(&self, kind: CauseKind) -> Option<Severity> {
        self.severity_over(kind, defaults(kind).severity)
    }

    /// As [`Self::severity`], with a default that depends on the reading.
    pub fn severity_over(&self, kind: CauseKind, default: Severity) -> Option<Severity> {
        let lists = &self.0.causes;
        if lists.fatal.contains(&kind.into()) {
            Some(Severity::Fatal)
        } else if lists.warn.contains(&kind.into()) {
            Some(Severity::Warning)
        } else if lists.ignore.contains(&kind.into()) {
            None
        } else {
            Some(default)
        }
    }

    pub fn below_slowdown(&self) -> i64 {
        self.thresholds().below_slowdown_celsius.unwrap_or(BELOW_SLOWDOWN).into()
    }

    pub fn below_shutdown(&self) -> i64 {
        self.thresholds().below_shutdown_celsius.unwrap_or(BELOW_SHUTDOWN).into()
    }

    pub fn uncorrectable_ecc(&self) -> u64 {
        self.thresholds().uncorrectable_ecc_errors.unwrap_or(UNCORRECTABLE_ECC)
    }

    pub fn remapped_rows(&self) -> u64 {
        self.thresholds().remapped_rows.unwrap_or(REMAPPED_ROWS)
    }

    pub fn retired_pages(&self) -> u64 {
        self.thresholds().retired_pages.unwrap_or(RETIRED_PAGES)
    }

    /// Returns the rate of PCIe replays above which they are a cause, for a link of this generation and width.
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

/// How a cause ends. In every case it is over only after the GPU has stayed healthy for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cure {
    /// By itself, as heat does: when several readings in a row no longer show it.
    Passing,
    /// By a restart of the GPU: a reset, a driver reload or a node reboot. A reading that no longer shows it proves
    /// that as well.
    Restart,
    /// Only when a reading no longer shows it. Such failures do not heal: the GPU has to be replaced.
    Replacement,
}

/// The defaults of a kind of cause, which rules can override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindDefaults {
    pub severity: Severity,
    pub action: Action,
    pub cure: Cure,
    /// Whether one reading is not enough, because the condition is intermittent.
    pub confirm: bool,
}

/// Returns the defaults of a kind. Those of [`CauseKind::Xid`] depend on the number: see [`super::xid`].
pub fn defaults(kind: CauseKind) -> KindDefaults {
    use Action::{CheckHardware, DrainAndReset, None, RebootNode, ReplaceGpu, ResetGpu};
    use CauseKind as Kind;
    use Cure::{Passing, Replacement, Restart};
    use Severity::{Fatal, Warning};

    let (severity, action, cure, confirm) = match kind {
        Kind::Xid | Kind::ResetRequired | Kind::UncorrectableEcc | Kind::RecoveryActionNeeded => {
            (Fatal, ResetGpu, Restart, false)
        }
        Kind::GpuLost | Kind::NvSwitchError => (Fatal, RebootNode, Restart, false),
        Kind::InsufficientPower => (Fatal, CheckHardware, Restart, false),
        // While a driver is being loaded, GPUs appear one by one.
        Kind::CannotOpen => (Fatal, RebootNode, Restart, true),
        Kind::NotListed | Kind::FabricNotReady => (Fatal, RebootNode, Passing, true),
        // These are about the probe and the driver; the GPU may be healthy.
        Kind::NoPermission => (Warning, None, Passing, true),
        Kind::NotAnswering => (Warning, RebootNode, Passing, true),
        Kind::InforomCorrupt | Kind::SramThresholdExceeded | Kind::RowRemapFailed | Kind::TooManyRetiredPages => {
            (Fatal, ReplaceGpu, Replacement, false)
        }
        Kind::TooManyRemappedRows => (Warning, ReplaceGpu, Replacement, false),
        // The GPU continues to work with the memory that it has.
        Kind::RowRemapPending => (Warning, DrainAndReset, Restart, false),
        Kind::PageRetirementPending => (Warning, RebootNode, Restart, false),
        Kind::Overheating
        | Kind::ThermalSlowdown
        | Kind::HardwareSlowdown
        | Kind::PowerBrake
        | Kind::PcieLinkDegraded
        | Kind::PcieReplays => (Warning, CheckHardware, Passing, true),
        Kind::NvLinkDown | Kind::FabricUnhealthy => (Fatal, ResetGpu, Passing, true),
    };
    KindDefaults { severity, action, cure, confirm }
}

/// Returns whether the end of such a cause proves that the GPU was restarted, because nothing else ends it.
pub fn proves_restart(kind: CauseKind) -> bool {
    matches!(kind, CauseKind::GpuLost | CauseKind::ResetRequired | CauseKind::RecoveryActionNeeded)
}

/// The kinds that explain why a GPU could not be read. A GPU that answers has none of them.
pub const ACCESS_KINDS: [CauseKind; 7] = [
    CauseKind::GpuLost,
    CauseKind::ResetRequired,
    CauseKind::InsufficientPower,
    CauseKind::CannotOpen,
    CauseKind::NoPermission,
    CauseKind::NotListed,
    CauseKind::NotAnswering,
];

#[cfg(test)]
mod tests {
    use gpu_operator_crd::health::{CauseClasses, XidClasses};

    use super::*;

    #[test]
    fn without_rules_the_defaults_apply() {
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
    fn the_most_severe_of_several_lists_applies() {
        let rules = Rules::from(HealthRules {
            xids: XidClasses { ignore: vec![79, 31, 48], warn: vec![79, 31], fatal: vec![31] },
            causes: CauseClasses {
                ignore: vec![CauseKind::PowerBrake.into(), CauseKind::NvLinkDown.into()],
                warn: vec![CauseKind::NvLinkDown.into()],
                fatal: vec![CauseKind::Overheating.into()],
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
