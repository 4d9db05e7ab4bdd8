//! NVML's values for one GPU at one time. A value that the card, the driver or the current state does not provide is
//! absent.

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Readings {
    pub thermal: Thermal,
    /// Current power, in mW.
    pub power_milliwatts: Option<u32>,
    /// The power limit in force, in mW.
    pub power_limit_milliwatts: Option<u32>,
    /// Energy used since the GPU was last started, in mJ.
    pub energy_millijoules: Option<u64>,
    /// Clock of the streaming multiprocessors, in MHz.
    pub sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    /// The reasons for the current clocks: NVML's bits, see [`clocks`].
    pub clock_reasons: Option<u64>,
    /// Performance state: 0 is the fastest, 15 the slowest.
    pub performance_state: Option<u32>,
    /// Share of time in which a kernel was running, in percent.
    pub gpu_utilization_percent: Option<u32>,
    /// Share of time in which memory was read or written, in percent.
    pub memory_utilization_percent: Option<u32>,
    /// Memory in use, in bytes. Drivers before R510 include what they reserve for themselves.
    pub memory_used_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    pub ecc: Ecc,
    /// Retired memory pages, on GPUs before Ampere.
    pub pages: Option<RetiredPages>,
    /// Remapped memory rows, on Ampere and later.
    pub rows: Option<RemappedRows>,
    /// Whether each NVLink is active, in order of link number. Empty if the GPU has none.
    pub nvlinks: Vec<bool>,
    pub fabric: Option<Fabric>,
    pub pcie: Pcie,
    pub mig: Option<bool>,
    /// Who may use the GPU: 0 anyone, 2 no one, 3 one process.
    pub compute_mode: Option<u32>,
    /// Whether the driver keeps the GPU initialised while no one uses it.
    pub persistence: Option<bool>,
    /// NVML's recommended recovery action; 0 is none.
    pub recovery_action: Option<u32>,
    /// Whether NVML found the board's configuration memory (infoROM) corrupt.
    pub inforom_corrupt: Option<bool>,
    /// The number of processes that compute on the GPU.
    pub processes: Option<u32>,
}

/// Temperatures in °C.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Thermal {
    pub gpu: Option<i64>,
    pub memory: Option<i64>,
    pub slowdown_at: Option<i64>,
    pub shutdown_at: Option<i64>,
    /// Degrees left until the GPU slows down. Newer cards report this instead of temperatures.
    pub margin: Option<i64>,
    /// The margin, below zero, at which the GPU shuts down.
    pub shutdown_margin: Option<i64>,
}

/// Newer cards report margins, older ones temperatures.
impl Thermal {
    pub fn until_slowdown(&self) -> Option<i64> {
        self.margin.or(difference(self.slowdown_at, self.gpu))
    }

    pub fn until_shutdown(&self) -> Option<i64> {
        difference(self.margin, self.shutdown_margin).or(difference(self.shutdown_at, self.gpu))
    }
}

fn difference(high: Option<i64>, low: Option<i64>) -> Option<i64> {
    high.zip(low).and_then(|(high, low)| high.checked_sub(low))
}

/// Memory errors since the driver was loaded (volatile) and over the GPU's lifetime (aggregate).
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Ecc {
    pub enabled: Option<bool>,
    pub volatile_corrected: Option<u64>,
    pub volatile_uncorrected: Option<u64>,
    pub aggregate_corrected: Option<u64>,
    pub aggregate_uncorrected: Option<u64>,
    /// Whether the SRAM had more uncorrectable errors than NVIDIA allows.
    pub sram_threshold_exceeded: Option<bool>,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct RetiredPages {
    /// Pages retired for several correctable errors.
    pub correctable: u64,
    pub uncorrectable: u64,
    /// Whether a page is retired at the next reboot; absent if not reported.
    pub pending: Option<bool>,
}

/// Memory rows that were replaced by spare ones.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct RemappedRows {
    pub correctable: u64,
    pub uncorrectable: u64,
    /// Whether a row is replaced at the next reset.
    pub pending: bool,
    /// Whether a row could not be replaced.
    pub failed: bool,
}

/// The GPU's membership in an NVLink fabric, in NVML's numbers.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Fabric {
    /// 1 not started, 2 joining, 3 joined.
    pub state: u32,
    /// 0, or the error with which joining ended.
    pub status: u32,
    /// 0 not reported, 1 healthy, 2 unhealthy, 3 limited capacity; absent with drivers that do not support it.
    pub health: Option<u32>,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Pcie {
    pub generation: Option<u32>,
    /// Highest generation that GPU and slot support.
    pub max_generation: Option<u32>,
    /// Current number of lanes.
    pub width: Option<u32>,
    /// Most lanes that GPU and slot support.
    pub max_width: Option<u32>,
    /// Packets repeated since the driver was loaded.
    pub replays: Option<u64>,
}

/// NVML's bits for the reasons of the current clocks.
pub mod clocks {
    pub const IDLE: u64 = 0x1;
    /// The hardware slows the GPU down.
    pub const HARDWARE_SLOWDOWN: u64 = 0x8;
    /// The driver slows the GPU down because of heat.
    pub const SOFTWARE_THERMAL: u64 = 0x20;
    /// The hardware slows the GPU down because of heat.
    pub const HARDWARE_THERMAL: u64 = 0x40;
    /// The hardware slows the GPU down because the power supply requests it.
    pub const POWER_BRAKE: u64 = 0x80;

    /// All bits with NVML's names.
    pub const NAMES: [(u64, &str); 9] = [
        (IDLE, "GpuIdle"),
        (0x2, "ApplicationsClocksSetting"),
        (0x4, "SwPowerCap"),
        (HARDWARE_SLOWDOWN, "HwSlowdown"),
        (0x10, "SyncBoost"),
        (SOFTWARE_THERMAL, "SwThermalSlowdown"),
        (HARDWARE_THERMAL, "HwThermalSlowdown"),
        (POWER_BRAKE, "HwPowerBrakeSlowdown"),
        (0x100, "DisplayClockSetting"),
    ];
}

impl Readings {
    /// Returns how many NVLinks are active; `None` if the GPU has none.
    pub fn active_nvlinks(&self) -> Option<usize> {
        (!self.nvlinks.is_empty()).then(|| self.nvlinks.iter().filter(|active| **active).count())
    }

    /// Returns whether the GPU is certainly busy: on an idle one, links and clocks are slow on purpose.
    pub fn is_busy(&self) -> bool {
        self.performance_state.is_some_and(|state| state <= 2)
            && self.clock_reasons.is_some_and(|reasons| reasons & clocks::IDLE == 0)
            && self.gpu_utilization_percent.is_some_and(|percent| percent > 0)
    }
}
