//! The health of one GPU as the probe judges it, and the rules that it judges by.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{KubeSchema, core::Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumIter, IntoStaticStr};

/// How one GPU is, why, and what to do.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GpuHealth {
    /// How it is.
    #[serde(default)]
    pub state: HealthState,
    /// What to do, in one word: the most thorough of what its causes call for.
    #[serde(default)]
    pub action: Action,
    /// Since when the state is what it is. Absent while nothing is known of the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Why it is so, the gravest first. Those that are dealt with stay, marked, until they count as over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub causes: Vec<Cause>,
    /// The GPU's energy counter, in mJ since it was last started, when the latest cause came that a reset cures. A
    /// smaller reading proves that the GPU was reset since. Absent without such a cause, or without such a counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_mark: Option<u64>,
    /// When the GPU was last seen to have been restarted while causes stood that this cures: what the kernel log says of
    /// the time before is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<Time>,
}

/// How a GPU is.
#[derive(
    Serialize, Deserialize, JsonSchema, IntoStaticStr, EnumIter, Clone, Copy, Debug, Default, PartialEq, Eq, Hash,
)]
pub enum HealthState {
    /// Nothing is wrong with it.
    Healthy,
    /// It works, and something is wrong: a cause of severity `Warning` stands, none of severity `Fatal`.
    Degraded,
    /// It must not be used: a cause of severity `Fatal` stands.
    Unhealthy,
    /// What was wrong is dealt with, and the GPU has to stay well for a while before it counts as such.
    Recovering,
    /// The GPU could not be asked lately, and nothing fatal is known of it.
    #[default]
    Unknown,
}

/// What to do about a GPU, each more thorough than the one before.
#[derive(
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
    EnumIter,
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
    /// Nothing.
    #[default]
    None,
    /// Restart the programs that use the GPU.
    RestartApplication,
    /// Let the programs that use the GPU finish, then reset it.
    DrainAndReset,
    /// Reset the GPU; the programs that use it do not work any more.
    ResetGpu,
    /// Reboot the node; a reset of the GPU is not enough.
    RebootNode,
    /// Look at the machine: power, cooling, slot, cables and bridges.
    CheckHardware,
    /// Replace the GPU.
    ReplaceGpu,
}

/// One thing that is wrong with a GPU.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// What it is.
    pub kind: CauseKind,
    /// How grave it is.
    pub severity: Severity,
    /// NVIDIA's number of the error; of kind `Xid` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<u16>,
    /// How often it came, or how many errors, pages or rows it is about: rounded down to 1, 2, 5, 10, 20, 50 and so on, so
    /// that a count that runs is not news each time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// What it was known by, when it came.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub evidence: String,
    /// When it came.
    pub since: Time,
    /// Whether it is dealt with: it is over once the GPU has stayed well for long enough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recovering: bool,
}

/// How grave a cause is.
#[derive(
    Serialize, Deserialize, JsonSchema, IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub enum Severity {
    /// The GPU works on.
    Warning,
    /// The GPU must not be used.
    Fatal,
}

/// What can be wrong with a GPU.
#[derive(
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
    EnumIter,
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
    /// The driver has reported an error of this number (NVML's event, or the kernel log).
    Xid,
    /// The GPU fell off the bus.
    GpuLost,
    /// NVML refuses the GPU until it is reset.
    ResetRequired,
    /// The GPU's external power is not connected or not sufficient.
    InsufficientPower,
    /// NVML cannot open the GPU, for another reason.
    CannotOpen,
    /// The probe may not open the GPU's device nodes: nothing is known of the GPU itself.
    NoPermission,
    /// The GPU is on the PCI bus, and NVML does not list it.
    NotListed,
    /// NVML hangs, crashes or fails, so that nothing is known of the GPU itself.
    NotAnswering,
    /// NVML names a recovery action.
    RecoveryActionNeeded,
    /// The board's configuration memory (infoROM) is corrupt.
    InforomCorrupt,
    /// Uncorrectable memory errors since the driver was loaded.
    UncorrectableEcc,
    /// The GPU itself says that it has had too many uncorrectable errors in its SRAM.
    SramThresholdExceeded,
    /// A memory row waits for a reset to be replaced.
    RowRemapPending,
    /// A memory row could not be replaced.
    RowRemapFailed,
    /// Many memory rows were replaced for uncorrectable errors.
    TooManyRemappedRows,
    /// A memory page waits for a reboot to be retired.
    PageRetirementPending,
    /// Many memory pages were retired.
    TooManyRetiredPages,
    /// The GPU is too hot.
    Overheating,
    /// The GPU slows down because of heat.
    ThermalSlowdown,
    /// The GPU's hardware slows it down, for a reason that it does not tell.
    HardwareSlowdown,
    /// The power supply makes the GPU slow down.
    PowerBrake,
    /// An NVLink of the GPU is down.
    NvLinkDown,
    /// The GPU has not joined the NVLink fabric.
    FabricNotReady,
    /// The GPU's place in the NVLink fabric is unhealthy.
    FabricUnhealthy,
    /// The PCIe link is narrower, or under load slower, than GPU and slot allow.
    PcieLinkDegraded,
    /// Packets are repeated on the PCIe link more often than they should be.
    PcieReplays,
}

/// By what the probe judges a node's GPUs. What is absent has the probe's default, which docs/health.md names with its
/// source.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HealthRules {
    /// Pause between two readings of the GPUs. Absent: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self.matches('^([0-9]{1,6}(h|m|s)){1,3}$') && self.matches('[1-9]')",
        "write a duration in hours, minutes and seconds that is longer than nothing, such as 30s or 1m30s"
    ))]
    pub interval: Option<Duration>,
    /// How many readings in a row must show what comes and goes (heat, slowdowns, links) before it is a cause.
    /// Absent: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub confirm_intervals: Option<u32>,
    /// How many readings in a row must show nothing of a cause before it is over. What comes and goes counts as dealt with
    /// after half of them. Absent: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub clean_intervals: Option<u32>,
    /// Which XIDs mean what, over the defaults.
    #[serde(default, skip_serializing_if = "is_default")]
    pub xids: XidClasses,
    /// How grave each kind of cause is, over the defaults. Of kind `Xid`, `xids` tells.
    #[serde(default, skip_serializing_if = "is_default")]
    pub causes: CauseClasses,
    /// From where on a reading is a cause.
    #[serde(default, skip_serializing_if = "is_default")]
    pub thresholds: Thresholds,
}

/// Numbers of XIDs by what they mean for the GPU. One that is in none of the lists means what it does by default; of
/// several lists, the gravest holds.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct XidClasses {
    /// Nothing: the error is a program's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(range(min = 1, max = 1023)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub ignore: Vec<u16>,
    /// A cause of severity `Warning`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(range(min = 1, max = 1023)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub warn: Vec<u16>,
    /// A cause of severity `Fatal`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(range(min = 1, max = 1023)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub fatal: Vec<u16>,
}

/// Kinds of causes by how grave they are. One that is in none of the lists is as grave as it is by default; of several
/// lists, the gravest holds.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CauseClasses {
    /// No cause at all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub ignore: Vec<CauseKind>,
    /// Of severity `Warning`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub warn: Vec<CauseKind>,
    /// Of severity `Fatal`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub fatal: Vec<CauseKind>,
}

/// From where on a reading is a cause.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Thresholds {
    /// How many degrees Celsius below the temperature at which the GPU slows down it counts as `Overheating`, a
    /// warning. Absent: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub below_slowdown_celsius: Option<u32>,
    /// How many degrees Celsius below the temperature at which the GPU shuts down `Overheating` is fatal. Absent: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub below_shutdown_celsius: Option<u32>,
    /// How many uncorrectable memory errors since the driver was loaded are `UncorrectableEcc`. Absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub uncorrectable_ecc_errors: Option<u64>,
    /// How many rows replaced for uncorrectable errors are `TooManyRemappedRows`. Absent: 512.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub remapped_rows: Option<u64>,
    /// How many retired memory pages are `TooManyRetiredPages`. Absent: 63.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub retired_pages: Option<u64>,
    /// How many repeated packets a minute are `PcieReplays`. Absent: by the link's generation and width.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub pcie_replays_per_minute: Option<u64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
