//! Reads the state of a GPU.

use nvml_wrapper::{
    Device,
    enum_wrappers::device::{Clock, EccCounter, MemoryError, RetirementCause, TemperatureSensor, TemperatureThreshold},
    error::NvmlError,
};

use super::raw;
use crate::nvml::readings::{Ecc, Pcie, Readings, RetiredPages, Thermal};

mod field {
    pub const MEMORY_TEMPERATURE: u32 = 82;
    pub const SHUTDOWN_MARGIN: u32 = 193;
    pub const RECOVERY_ACTION: u32 = 230;
}

/// The most NVLinks that a GPU can have.
const MAX_NVLINKS: u32 = 36;

/// Performance states from this value on are invalid.
const UNKNOWN_STATE: u32 = 32;

/// Reads everything that a GPU provides; the infoROM only if requested.
pub fn read(device: &Device<'_>, examine: bool) -> Result<Readings, NvmlError> {
    let mut get = Reader::default();
    let utilization = get.value(device.utilization_rates());
    let memory = get.value(raw::memory(device));
    let readings = Readings {
        thermal: thermal(&mut get, device),
        power_milliwatts: get.value(device.power_usage()),
        power_limit_milliwatts: get.value(device.enforced_power_limit()),
        energy_millijoules: get.value(device.total_energy_consumption()),
        sm_clock_mhz: get.value(device.clock_info(Clock::SM)),
        memory_clock_mhz: get.value(device.clock_info(Clock::Memory)),
        clock_reasons: get.value(raw::clock_reasons(device)),
        performance_state: get
            .value(device.performance_state())
            .map(|state| state.as_c())
            .filter(|state| *state < UNKNOWN_STATE),
        gpu_utilization_percent: utilization.as_ref().map(|utilization| utilization.gpu),
        memory_utilization_percent: utilization.as_ref().map(|utilization| utilization.memory),
        memory_used_bytes: memory.as_ref().map(|memory| memory.used),
        memory_total_bytes: memory.as_ref().map(|memory| memory.total),
        ecc: ecc(&mut get, device),
        pages: pages(&mut get, device),
        rows: get.value(raw::remapped_rows(device)),
        nvlinks: nvlinks(&mut get, device),
        fabric: get.value(raw::fabric(device)).flatten(),
        pcie: Pcie {
            generation: get.value(device.current_pcie_link_gen()),
            max_generation: get.value(device.max_pcie_link_gen()),
            width: get.value(device.current_pcie_link_width()),
            max_width: get.value(device.max_pcie_link_width()),
            replays: get.value(device.pcie_replay_counter()).map(u64::from),
        },
        mig: get.value(device.mig_mode()).map(|mode| mode.current != 0),
        compute_mode: get.value(device.compute_mode()).map(|mode| mode.as_c()),
        persistence: get.value(device.is_in_persistent_mode()),
        recovery_action: get
            .value(raw::field(device, field::RECOVERY_ACTION))
            .and_then(|action| u32::try_from(action).ok()),
        inforom_corrupt: examine.then(|| get.inforom(device)).flatten(),
        processes: get.value(device.running_compute_processes_count()),
    };
    get.lost.map_or(Ok(readings), Err)
}

/// Unwraps values, and records when the GPU as a whole is gone.
#[derive(Default)]
struct Reader {
    lost: Option<NvmlError>,
}

impl Reader {
    fn value<T>(&mut self, answer: Result<T, NvmlError>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired)) => {
                self.lost.get_or_insert(error);
                None
            }
            Err(_) => None,
        }
    }

    fn inforom(&mut self, device: &Device<'_>) -> Option<bool> {
        match device.validate_info_rom() {
            Err(NvmlError::CorruptedInfoROM) => Some(true),
            answer => self.value(answer).map(|()| false),
        }
    }
}

fn thermal(get: &mut Reader, device: &Device<'_>) -> Thermal {
    Thermal {
        gpu: get.value(device.temperature(TemperatureSensor::Gpu)).map(i64::from),
        memory: get.value(raw::field(device, field::MEMORY_TEMPERATURE)),
        slowdown_at: get.value(device.temperature_threshold(TemperatureThreshold::Slowdown)).map(i64::from),
        shutdown_at: get.value(device.temperature_threshold(TemperatureThreshold::Shutdown)).map(i64::from),
        margin: get.value(raw::margin_temperature(device)),
        shutdown_margin: get.value(raw::field(device, field::SHUTDOWN_MARGIN)),
    }
}

fn ecc(get: &mut Reader, device: &Device<'_>) -> Ecc {
    let mut errors = |kind, counter| get.value(device.total_ecc_errors(kind, counter));
    Ecc {
        volatile_corrected: errors(MemoryError::Corrected, EccCounter::Volatile),
        volatile_uncorrected: errors(MemoryError::Uncorrected, EccCounter::Volatile),
        aggregate_corrected: errors(MemoryError::Corrected, EccCounter::Aggregate),
        aggregate_uncorrected: errors(MemoryError::Uncorrected, EccCounter::Aggregate),
        enabled: get.value(device.is_ecc_enabled()).map(|mode| mode.currently_enabled),
        sram_threshold_exceeded: get.value(raw::sram_threshold_exceeded(device)),
    }
}

fn pages(get: &mut Reader, device: &Device<'_>) -> Option<RetiredPages> {
    let mut count =
        |cause| get.value(device.retired_pages(cause)).map(|pages| u64::try_from(pages.len()).unwrap_or(u64::MAX));
    let correctable = count(RetirementCause::MultipleSingleBitEccErrors)?;
    let uncorrectable = count(RetirementCause::DoubleBitEccError)?;
    Some(RetiredPages { correctable, uncorrectable, pending: get.value(device.are_pages_pending_retired()) })
}

fn nvlinks(get: &mut Reader, device: &Device<'_>) -> Vec<bool> {
    let mut links = Vec::new();
    for link in 0..MAX_NVLINKS {
        // The first missing link is the end of the list.
        match get.value(device.link_wrapper_for(link).is_active()) {
            Some(active) => links.push(active),
            None => break,
        }
    }
    links
}
