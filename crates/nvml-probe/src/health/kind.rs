//! What each kind of cause is by nature: how grave, what helps, and how it ends.

use gpu_operator_crd::health::{Action, CauseKind, Severity};

/// How a cause ends. Each then counts as over only after the GPU has stayed well for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cure {
    /// By itself, as heat does: when readings in a row do not show it any more.
    Passing,
    /// By a restart of the GPU: its reset, a reload of the driver or a reboot of the node. A reading that does not show it
    /// any more is proof of that as well.
    Restart,
    /// Only by a reading that does not show it any more, and such failures do not mend: by another GPU.
    Replacement,
}

/// What a kind of cause is, unless a rule says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nature {
    /// How grave it is.
    pub severity: Severity,
    /// What helps.
    pub action: Action,
    /// How it ends.
    pub cure: Cure,
    /// Whether one reading is not enough, because what it shows comes and goes.
    pub confirm: bool,
}

/// The nature of a kind. Of [`CauseKind::Xid`] it depends on the number: see [`super::xid`].
#[must_use]
pub fn nature(kind: CauseKind) -> Nature {
    use Action::{CheckHardware, DrainAndReset, None, RebootNode, ReplaceGpu, ResetGpu};
    use CauseKind as Kind;
    use Cure::{Passing, Replacement, Restart};
    use Severity::{Fatal, Warning};

    let (severity, action, cure, confirm) = match kind {
        Kind::Xid | Kind::ResetRequired | Kind::UncorrectableEcc | Kind::RecoveryActionNeeded => {
            (Fatal, ResetGpu, Restart, false)
        }
        Kind::GpuLost => (Fatal, RebootNode, Restart, false),
        Kind::InsufficientPower => (Fatal, CheckHardware, Restart, false),
        // While a driver is being loaded, GPUs come one by one.
        Kind::CannotOpen => (Fatal, RebootNode, Restart, true),
        Kind::NotListed | Kind::FabricNotReady => (Fatal, RebootNode, Passing, true),
        // These speak of the probe and the driver; the GPU may be well.
        Kind::NoPermission => (Warning, None, Passing, true),
        Kind::NotAnswering => (Warning, RebootNode, Passing, true),
        Kind::InforomCorrupt | Kind::SramThresholdExceeded | Kind::RowRemapFailed | Kind::TooManyRetiredPages => {
            (Fatal, ReplaceGpu, Replacement, false)
        }
        Kind::TooManyRemappedRows => (Warning, ReplaceGpu, Replacement, false),
        // The GPU works on with the memory that it has.
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
    Nature { severity, action, cure, confirm }
}

/// Whether the end of such a cause proves that the GPU was restarted: nothing else ends it.
#[must_use]
pub fn proves_restart(kind: CauseKind) -> bool {
    matches!(kind, CauseKind::GpuLost | CauseKind::ResetRequired | CauseKind::RecoveryActionNeeded)
}

/// Kinds that say why a GPU could not be asked. A GPU that answers is free of them.
pub const OF_ACCESS: [CauseKind; 7] = [
    CauseKind::GpuLost,
    CauseKind::ResetRequired,
    CauseKind::InsufficientPower,
    CauseKind::CannotOpen,
    CauseKind::NoPermission,
    CauseKind::NotListed,
    CauseKind::NotAnswering,
];
