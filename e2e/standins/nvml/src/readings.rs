//! The readings of a GPU's state.

use serde::Deserialize;

/// The state of a GPU. The GPU does not support readings that are not set, except for its links, its fabric and its
/// modes, which default to those of its model.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Readings {
    /// Temperatures.
    pub thermal: Thermal,
    /// Power, in mW.
    pub power_milliwatts: Option<u32>,
    /// Power limit in force, in mW.
    pub power_limit_milliwatts: Option<u32>,
    /// Energy since the GPU was started, in mJ.
    pub energy_millijoules: Option<u64>,
    /// Clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    /// NVML's clock event reasons, as bits.
    pub clock_reasons: Option<u64>,
    /// Performance state, 0 to 15.
    pub performance_state: Option<u32>,
    /// Utilisation of the GPU, in percent. NVML returns the two utilisations together: both must be set, or neither.
    pub gpu_utilization_percent: Option<u32>,
    /// Utilisation of the memory, in percent.
    pub memory_utilization_percent: Option<u32>,
    /// Memory in use, in bytes. Defaults to zero.
    pub memory_used_bytes: Option<u64>,
    /// Memory that the driver reserves for itself, in bytes. Defaults to zero.
    pub memory_reserved_bytes: Option<u64>,
    /// Memory errors.
    pub ecc: Ecc,
    /// Retired pages.
    pub pages: Option<Pages>,
    /// Remapped rows.
    pub rows: Option<Rows>,
    /// Whether the first NVLinks are active. The other links have the model's state.
    pub nvlinks: Vec<bool>,
    /// The NVLink fabric.
    pub fabric: Option<Fabric>,
    /// The link to the host.
    pub pcie: Pcie,
    pub mig: Option<bool>,
    /// NVML's compute mode.
    pub compute_mode: Option<u32>,
    /// Persistence mode.
    pub persistence: Option<bool>,
    /// NVML's recovery action, field 230.
    pub recovery_action: Option<u32>,
    /// Whether the infoROM is corrupt.
    pub inforom_corrupt: Option<bool>,
    /// Number of compute processes.
    pub processes: Option<u32>,
}

/// Temperatures in °C.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Thermal {
    /// The temperature of the GPU.
    pub gpu: Option<i32>,
    /// The temperature of the memory, field 82.
    pub memory: Option<i32>,
    /// The temperature at which the GPU slows down.
    pub slowdown_at: Option<i32>,
    /// The temperature at which the GPU shuts down.
    pub shutdown_at: Option<i32>,
    /// The number of degrees until the GPU slows down.
    pub margin: Option<i32>,
    /// The margin at which the GPU shuts down, field 193.
    pub shutdown_margin: Option<i32>,
}

/// Memory errors.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Ecc {
    pub enabled: Option<bool>,
    /// Corrected since the driver was loaded.
    pub volatile_corrected: Option<u64>,
    /// Uncorrected since the driver was loaded.
    pub volatile_uncorrected: Option<u64>,
    /// Corrected over the GPU's life.
    pub aggregate_corrected: Option<u64>,
    /// Uncorrected over the GPU's life.
    pub aggregate_uncorrected: Option<u64>,
    /// Whether the SRAM error threshold is exceeded.
    pub sram_threshold_exceeded: Option<bool>,
}

/// Retired pages.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Pages {
    /// The number of pages retired because of several correctable errors.
    pub correctable: u32,
    /// The number of pages retired because of an uncorrectable error.
    pub uncorrectable: u32,
    /// Whether the retirement of a page is pending.
    pub pending: Option<bool>,
}

/// Remapped rows.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rows {
    /// The number of rows remapped because of correctable errors.
    pub correctable: u32,
    /// The number of rows remapped because of uncorrectable errors.
    pub uncorrectable: u32,
    /// Whether a remapping is pending.
    pub pending: bool,
    /// Whether a remapping failed.
    pub failed: bool,
}

/// The NVLink fabric.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Fabric {
    /// NVML's state: 1 not started, 2 joining, 3 joined.
    pub state: u8,
    /// The return code of joining.
    pub status: u32,
    /// NVML's health summary; not reported by libraries that only have version 2 of the structure.
    pub health: Option<u8>,
    /// The UUID of the cluster, as 32 hexadecimal digits, without counting dashes; zeros in a fabric within one
    /// machine.
    pub cluster: String,
    /// The number of the clique.
    pub clique: u32,
}

/// The link to the host.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Pcie {
    /// Current generation.
    pub generation: Option<u32>,
    /// Maximum generation.
    pub max_generation: Option<u32>,
    /// Current number of lanes.
    pub width: Option<u32>,
    /// Maximum number of lanes.
    pub max_width: Option<u32>,
    /// Number of replays so far.
    pub replays: Option<u32>,
}
