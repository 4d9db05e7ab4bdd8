//! The defaults of each kind of cause: its severity, the recommended action and how it ends.

use gpu_operator_crd::health::{Action, CauseKind, Severity};

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
    /// The recommended action.
    pub action: Action,
    /// How it ends.
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
        Kind::GpuLost => (Fatal, RebootNode, Restart, false),
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
