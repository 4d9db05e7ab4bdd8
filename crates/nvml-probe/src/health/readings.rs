//! What NVML says of one GPU at one moment. Whatever the card, the driver or the moment has no answer for is absent.

use serde::{Deserialize, Serialize};

/// One reading of a GPU.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Readings {
    /// Heat, and the limits that it is measured against.
    pub thermal: Thermal,
    /// Power now, in mW.
    pub power_milliwatts: Option<u32>,
    /// The power limit in force, in mW.
    pub power_limit_milliwatts: Option<u32>,
    /// Energy used since the GPU was last started, in mJ.
    pub energy_millijoules: Option<u64>,
    /// Clock of the streaming multiprocessors, in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory, in MHz.
    pub memory_clock_mhz: Option<u32>,
    /// Why the clocks are what they are: NVML's bits, see [`clocks`].
    pub clock_reasons: Option<u64>,
    /// Performance state: 0 is the fastest, 15 the slowest.
    pub performance_state: Option<u32>,
    /// Share of time in which a kernel ran, in percent.
    pub gpu_utilization_percent: Option<u32>,
    /// Share of time in which the memory was read or written, in percent.
    pub memory_utilization_percent: Option<u32>,
    /// Memory in use, in bytes.
    pub memory_used_bytes: Option<u64>,
    /// Memory in all, in bytes.
    pub memory_total_bytes: Option<u64>,
    /// Memory errors.
    pub ecc: Ecc,
    /// Memory pages that are retired; of GPUs before Ampere.
    pub pages: Option<RetiredPages>,
    /// Memory rows that are replaced; of Ampere and later.
    pub rows: Option<RemappedRows>,
    /// Whether each NVLink is active, in the order of their numbers. Empty: it has none.
    pub nvlinks: Vec<bool>,
    /// Its place in the NVLink fabric.
    pub fabric: Option<Fabric>,
    /// Its link to the host.
    pub pcie: Pcie,
    /// Whether partitions (MIG) are on.
    pub mig: Option<bool>,
    /// Who may use it: 0 anyone, 2 no one, 3 one process.
    pub compute_mode: Option<u32>,
    /// Whether the driver keeps it initialised while no one uses it.
    pub persistence: Option<bool>,
    /// NVML's recovery action; 0 is none.
    pub recovery_action: Option<u32>,
    /// Whether NVML found the board's configuration memory (infoROM) to be corrupt.
    pub inforom_corrupt: Option<bool>,
    /// How many processes compute on it.
    pub processes: Option<u32>,
}

/// Heat. Temperatures in °C.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Thermal {
    /// Of the GPU.
    pub gpu: Option<i64>,
    /// Of its memory.
    pub memory: Option<i64>,
    /// At which it slows itself down.
    pub slowdown_at: Option<i64>,
    /// At which it shuts down.
    pub shutdown_at: Option<i64>,
    /// How many degrees are left until it slows down. Newer cards tell this instead of temperatures.
    pub margin: Option<i64>,
    /// At which margin, below zero, it shuts down.
    pub shutdown_margin: Option<i64>,
}

/// Memory errors, since the driver was loaded (volatile) and over the GPU's life (aggregate).
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Ecc {
    /// Whether errors are corrected at all.
    pub enabled: Option<bool>,
    /// Corrected since the driver was loaded.
    pub volatile_corrected: Option<u64>,
    /// Not corrected since the driver was loaded.
    pub volatile_uncorrected: Option<u64>,
    /// Corrected over its life.
    pub aggregate_corrected: Option<u64>,
    /// Not corrected over its life.
    pub aggregate_uncorrected: Option<u64>,
    /// Whether its SRAM has had more uncorrectable errors than NVIDIA allows.
    pub sram_threshold_exceeded: Option<bool>,
}

/// Memory pages that are retired.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct RetiredPages {
    /// For several correctable errors.
    pub correctable: u64,
    /// For an uncorrectable one.
    pub uncorrectable: u64,
    /// Whether one waits for a reboot; absent where that is not told.
    pub pending: Option<bool>,
}

/// Memory rows that are replaced by spare ones.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct RemappedRows {
    /// For correctable errors.
    pub correctable: u64,
    /// For uncorrectable ones.
    pub uncorrectable: u64,
    /// Whether one waits for a reset.
    pub pending: bool,
    /// Whether one could not be replaced.
    pub failed: bool,
}

/// The GPU's place in the NVLink fabric, in NVML's numbers.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Fabric {
    /// 1 not begun, 2 joining, 3 joined.
    pub state: u32,
    /// Once joined: 0, or the error with which that ended.
    pub status: u32,
    /// 0 not told, 1 healthy, 2 unhealthy, 3 of limited capacity; absent with drivers that do not know it.
    pub health: Option<u32>,
}

/// The link to the host.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Pcie {
    /// Generation now.
    pub generation: Option<u32>,
    /// Highest generation of GPU and slot.
    pub max_generation: Option<u32>,
    /// Lanes now.
    pub width: Option<u32>,
    /// Most lanes of GPU and slot.
    pub max_width: Option<u32>,
    /// Packets repeated since the driver was loaded.
    pub replays: Option<u64>,
}

/// NVML's bits for why clocks are what they are.
pub mod clocks {
    /// It is idle.
    pub const IDLE: u64 = 0x1;
    /// The hardware slows the GPU down.
    pub const HARDWARE_SLOWDOWN: u64 = 0x8;
    /// The driver slows it down because of heat.
    pub const SOFTWARE_THERMAL: u64 = 0x20;
    /// The hardware slows it down because of heat.
    pub const HARDWARE_THERMAL: u64 = 0x40;
    /// The hardware slows it down because the power supply asks for it.
    pub const POWER_BRAKE: u64 = 0x80;

    /// All of them, by NVML's names.
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
    /// How many of its NVLinks are active; none where it has none.
    #[must_use]
    pub fn active_nvlinks(&self) -> Option<usize> {
        (!self.nvlinks.is_empty()).then(|| self.nvlinks.iter().filter(|active| **active).count())
    }

    /// Whether it is surely at work: on an idle one, links and clocks are slow on purpose.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.performance_state.is_some_and(|state| state <= 2)
            && self.clock_reasons.is_some_and(|reasons| reasons & clocks::IDLE == 0)
            && self.gpu_utilization_percent.is_some_and(|percent| percent > 0)
    }
}
