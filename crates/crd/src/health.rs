//! The health of a GPU as judged by the probe, and the rules of that judgement.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{KubeSchema, core::Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumIter, EnumString, IntoStaticStr};

use crate::open::{self, Open, is_default};

/// Health of one GPU: its state, the causes, and the recommended action.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GpuHealth {
    /// The state of the GPU.
    #[serde(default, deserialize_with = "open::or_default")]
    pub state: HealthState,
    /// The recommended action: the most thorough one that any of the causes requires.
    #[serde(default)]
    #[schemars(with = "Action")]
    pub action: Open<Action>,
    /// The time of the last change of state. Absent while nothing is known about the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The causes of the state, most severe first. Causes that have been resolved remain, marked as recovering, until
    /// they expire.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub causes: Vec<Cause>,
    /// The reading of the GPU's energy counter, in mJ since its last start, when the latest cause occurred that a reset
    /// resolves. A smaller reading proves that the GPU has been reset since. Absent if there is no such cause or no
    /// such counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_mark: Option<u64>,
    /// The time at which the GPU was last observed to have restarted while it had causes that a restart resolves.
    /// Kernel log entries from before that time are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<Time>,
}

/// The state of a GPU.
#[derive(
    Serialize, Deserialize, JsonSchema, IntoStaticStr, EnumIter, Clone, Copy, Debug, Default, PartialEq, Eq, Hash,
)]
pub enum HealthState {
    /// The GPU has no problem.
    Healthy,
    /// The GPU works but has a problem: it has a cause of severity `Warning` and none of severity `Fatal`.
    Degraded,
    /// The GPU must not be used: it has a cause of severity `Fatal`.
    Unhealthy,
    /// All causes have been resolved. The GPU becomes healthy if it has no problem for some time.
    Recovering,
    /// The GPU could not be queried recently, and has no known cause of severity `Fatal`.
    #[default]
    Unknown,
}

/// Recommended actions for a GPU, in increasing order of thoroughness.
#[derive(
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
    EnumIter,
    EnumString,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
)]
pub enum Action {
    /// No action is needed.
    #[default]
    None,
    /// Restart the programs that use the GPU.
    RestartApplication,
    /// Let the programs that use the GPU finish, then reset it.
    DrainAndReset,
    /// Reset the GPU; the programs that use it no longer work.
    #[serde(rename = "ResetGPU")]
    #[strum(serialize = "ResetGPU")]
    ResetGpu,
    /// Reboot the node; a reset of the GPU is not enough.
    RebootNode,
    /// Check the machine: power, cooling, slot, cables and bridges.
    CheckHardware,
    /// Replace the GPU.
    #[serde(rename = "ReplaceGPU")]
    #[strum(serialize = "ReplaceGPU")]
    ReplaceGpu,
}

impl Action {
    /// Returns the action as an instruction, for messages.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::RestartApplication => Some("restart the programs that use it"),
            Self::DrainAndReset => Some("let the programs that use it finish, then reset it"),
            Self::ResetGpu => Some("reset it"),
            Self::RebootNode => Some("reboot the node"),
            Self::CheckHardware => Some("check the machine's power, cooling, slot and cables"),
            Self::ReplaceGpu => Some("replace it"),
        }
    }
}

/// A problem of a GPU.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// The kind of problem.
    #[schemars(with = "CauseKind")]
    pub kind: Open<CauseKind>,
    /// The severity of the problem.
    #[serde(deserialize_with = "open::or_default")]
    pub severity: Severity,
    /// NVIDIA's number of the error. Only set for the kinds `Xid` and `NvSwitchError`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<u16>,
    /// The number of occurrences, errors, pages or rows, rounded down to 1, 2, 5, 10, 20, 50 and so on, so that a
    /// growing count does not change the object each time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The reading or log entry that revealed the problem when it occurred.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub evidence: String,
    /// The time at which the problem occurred.
    pub since: Time,
    /// Whether the problem has been resolved. The cause expires after the GPU has been without this problem for some
    /// time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recovering: bool,
}

/// The severity of a cause.
#[derive(
    Serialize, Deserialize, JsonSchema, IntoStaticStr, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub enum Severity {
    /// The GPU still works.
    #[default]
    Warning,
    /// The GPU must not be used.
    Fatal,
}

/// The kinds of problems of a GPU.
#[derive(
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
    EnumIter,
    EnumString,
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
)]
pub enum CauseKind {
    /// The driver reported an error with this number, by an NVML event or in the kernel log.
    Xid,
    /// The GPU has fallen off the bus.
    GpuLost,
    /// NVML rejects the GPU until it is reset.
    ResetRequired,
    /// The GPU's external power is disconnected or insufficient.
    InsufficientPower,
    /// NVML cannot open the GPU for another reason.
    CannotOpen,
    /// The probe lacks permission to open the GPU's device nodes; the state of the GPU itself is unknown.
    NoPermission,
    /// The GPU is on the PCI bus, but NVML does not list it.
    NotListed,
    /// NVML hangs, crashes or fails; the state of the GPU itself is unknown.
    NotAnswering,
    /// NVML reports that a recovery action is needed.
    RecoveryActionNeeded,
    /// The board's configuration memory (infoROM) is corrupt.
    InforomCorrupt,
    /// Uncorrectable memory errors have occurred since the driver was loaded.
    UncorrectableEcc,
    /// The GPU reports that the number of uncorrectable errors in its SRAM exceeds its threshold.
    SramThresholdExceeded,
    /// A memory row will be remapped at the next reset.
    RowRemapPending,
    /// A memory row could not be remapped.
    RowRemapFailed,
    /// Many memory rows have been remapped because of uncorrectable errors.
    TooManyRemappedRows,
    /// A memory page will be retired at the next reboot.
    PageRetirementPending,
    /// Many memory pages have been retired.
    TooManyRetiredPages,
    /// The temperature of the GPU is too high.
    Overheating,
    /// The GPU is throttled because of its temperature.
    ThermalSlowdown,
    /// The GPU's hardware throttles it for an unspecified reason.
    HardwareSlowdown,
    /// The power supply throttles the GPU.
    PowerBrake,
    /// An NVLink of the GPU is down.
    NvLinkDown,
    /// The GPU has not joined the NVLink fabric.
    FabricNotReady,
    /// The GPU's connection to the NVLink fabric is unhealthy.
    FabricUnhealthy,
    /// An `NVSwitch` of the machine reported a fatal error (`SXid`), by the kernel log: every GPU behind it has to be reset.
    NvSwitchError,
    /// The PCIe link is narrower, or under load slower, than GPU and slot support.
    PcieLinkDegraded,
    /// Packets are retransmitted on the PCIe link too often.
    PcieReplays,
}

/// The rules by which the probe judges a node's GPUs. docs/operate/health.md lists the defaults and their sources.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HealthRules {
    /// The interval between readings of the GPUs. Defaults to 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self.matches('^([0-9]{1,6}(h|m|s)){1,3}$') && self.matches('[1-9]')",
        "write a duration above zero in hours, minutes and seconds, such as 30s or 1m30s"
    ))]
    pub interval: Option<Duration>,
    /// The number of consecutive readings that must show a transient problem (temperature, throttling, links) before it
    /// becomes a cause. Defaults to 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub confirm_intervals: Option<u32>,
    /// The number of consecutive readings without a problem before its cause expires. A transient problem counts as
    /// resolved after half of them. Defaults to 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub clean_intervals: Option<u32>,
    /// The severity of XIDs. Numbers that are not listed have their default severity.
    #[serde(default, skip_serializing_if = "is_default")]
    pub xids: XidClasses,
    /// The severity of kinds of causes. Kinds that are not listed have their default severity. For kind `Xid`, see
    /// `xids`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub causes: CauseClasses,
    /// The thresholds above which a reading is a cause.
    #[serde(default, skip_serializing_if = "is_default")]
    pub thresholds: Thresholds,
}

/// Numbers of XIDs by severity. A number in none of the lists has its default severity; for a number in several lists,
/// the most severe applies.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct XidClasses {
    /// XIDs that are no problem of the GPU: errors of a program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(range(min = 1, max = 1023)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub ignore: Vec<u16>,
    /// XIDs that are causes of severity `Warning`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(range(min = 1, max = 1023)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub warn: Vec<u16>,
    /// XIDs that are causes of severity `Fatal`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(range(min = 1, max = 1023)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub fatal: Vec<u16>,
}

/// Kinds of causes by severity. A kind in none of the lists has its default severity; for a kind in several lists, the
/// most severe applies.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CauseClasses {
    /// Kinds that are ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<CauseKind>", length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub ignore: Vec<Open<CauseKind>>,
    /// Kinds that are of severity `Warning`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<CauseKind>", length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub warn: Vec<Open<CauseKind>>,
    /// Kinds that are of severity `Fatal`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<CauseKind>", length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub fatal: Vec<Open<CauseKind>>,
}

/// Thresholds above which a reading is a cause.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Thresholds {
    /// The number of degrees Celsius below the GPU's slowdown temperature from which `Overheating` is a warning.
    /// Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub below_slowdown_celsius: Option<u32>,
    /// The number of degrees Celsius below the GPU's shutdown temperature from which `Overheating` is fatal. Defaults
    /// to 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub below_shutdown_celsius: Option<u32>,
    /// The number of uncorrectable memory errors since the driver was loaded from which they are `UncorrectableEcc`.
    /// Defaults to 1.
    #[serde(rename = "uncorrectableECCErrors", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub uncorrectable_ecc_errors: Option<u64>,
    /// The number of rows remapped because of uncorrectable errors from which they are `TooManyRemappedRows`. Defaults
    /// to 512.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub remapped_rows: Option<u64>,
    /// The number of retired memory pages from which they are `TooManyRetiredPages`. Defaults to 63.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub retired_pages: Option<u64>,
    /// The number of retransmitted packets per minute from which they are `PcieReplays`. The default depends on the
    /// link's generation and width.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub pcie_replays_per_minute: Option<u64>,
}
