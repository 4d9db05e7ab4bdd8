//! NVML's calls for a GPU's state.
#![allow(unsafe_code)] // exporting C functions and writing through their pointers is this module's subject

use std::ffi::{c_int, c_longlong, c_uint, c_ulonglong};

use super::c::{Handle, answer, device, expect_version, export, put};
use crate::{readings::Readings, status::Status};

#[repr(C)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[repr(C)]
struct MarginTemperature {
    version: c_uint,
    margin: c_int,
}

#[repr(C)]
struct SramEccErrorStatus {
    version: c_uint,
    counts: [c_ulonglong; 11],
    threshold_exceeded: c_uint,
}

#[repr(C)]
struct FieldValue {
    id: c_uint,
    scope: c_uint,
    timestamp: c_longlong,
    latency: c_longlong,
    kind: c_uint,
    status: c_uint,
    value: c_longlong,
}

const _: () = assert!(size_of::<MarginTemperature>() == 8);
const _: () = assert!(size_of::<SramEccErrorStatus>() == 104);
const _: () = assert!(size_of::<FieldValue>() == 40);

const MARGIN_V1: c_uint = 0x0100_0008;
const SRAM_V1: c_uint = 0x0100_0068;

/// NVML's types of field values.
const UNSIGNED_INT: c_uint = 1;
const SIGNED_INT: c_uint = 5;

export! {
    nvmlDeviceGetTemperature (gpu: Handle, sensor: c_uint, to: *mut c_int) => {
        put(to, reading(gpu, |now| now.thermal.gpu.filter(|_| sensor == 0))?)
    };
    nvmlDeviceGetTemperatureThreshold (gpu: Handle, kind: c_uint, to: *mut c_int) => {
        put(to, reading(gpu, |now| match kind {
            0 => now.thermal.shutdown_at,
            1 => now.thermal.slowdown_at,
            _ => None,
        })?)
    };
    nvmlDeviceGetMarginTemperature (gpu: Handle, to: *mut MarginTemperature) => {
        let margin = reading(gpu, |now| now.thermal.margin)?;
        expect_version((&raw const (*to).version), &[MARGIN_V1])?;
        put(to, MarginTemperature { version: MARGIN_V1, margin })
    };
    nvmlDeviceGetPowerUsage (gpu: Handle, to: *mut c_uint) => put(to, reading(gpu, |now| now.power_milliwatts)?);
    nvmlDeviceGetEnforcedPowerLimit (gpu: Handle, to: *mut c_uint) => {
        put(to, reading(gpu, |now| now.power_limit_milliwatts)?)
    };
    nvmlDeviceGetTotalEnergyConsumption (gpu: Handle, to: *mut c_ulonglong) => {
        put(to, reading(gpu, |now| now.energy_millijoules)?)
    };
    nvmlDeviceGetClockInfo (gpu: Handle, kind: c_uint, to: *mut c_uint) => {
        put(to, reading(gpu, |now| match kind {
            1 => now.sm_clock_mhz,
            2 => now.memory_clock_mhz,
            _ => None,
        })?)
    };
    nvmlDeviceGetCurrentClocksEventReasons | nvmlDeviceGetCurrentClocksThrottleReasons
        (gpu: Handle, to: *mut c_ulonglong) => put(to, reading(gpu, |now| now.clock_reasons)?);
    nvmlDeviceGetPerformanceState (gpu: Handle, to: *mut c_uint) => put(to, reading(gpu, |now| now.performance_state)?);
    nvmlDeviceGetUtilizationRates (gpu: Handle, to: *mut Utilization) => {
        let (gpu, memory) =
            reading(gpu, |now| now.gpu_utilization_percent.zip(now.memory_utilization_percent))?;
        put(to, Utilization { gpu, memory })
    };

    nvmlDeviceGetEccMode (gpu: Handle, current: *mut c_uint, pending: *mut c_uint) => {
        let enabled = reading(gpu, |now| now.ecc.enabled)?.into();
        put(current, enabled)?;
        put(pending, enabled)
    };
    nvmlDeviceGetTotalEccErrors (gpu: Handle, kind: c_uint, counter: c_uint, to: *mut c_ulonglong) => {
        put(to, reading(gpu, |now| match (kind, counter) {
            (0, 0) => now.ecc.volatile_corrected,
            (1, 0) => now.ecc.volatile_uncorrected,
            (0, 1) => now.ecc.aggregate_corrected,
            (1, 1) => now.ecc.aggregate_uncorrected,
            _ => None,
        })?)
    };
    nvmlDeviceGetSramEccErrorStatus (gpu: Handle, to: *mut SramEccErrorStatus) => {
        let threshold_exceeded = reading(gpu, |now| now.ecc.sram_threshold_exceeded)?.into();
        expect_version((&raw const (*to).version), &[SRAM_V1])?;
        put(to, SramEccErrorStatus { version: SRAM_V1, counts: [0; 11], threshold_exceeded })
    };
    nvmlDeviceGetRetiredPages | nvmlDeviceGetRetiredPages_v2
        (gpu: Handle, cause: c_uint, count: *mut c_uint, addresses: *mut c_ulonglong) => {
        let pages = reading(gpu, |now| now.pages)?;
        let there = if cause == 0 { pages.correctable } else { pages.uncorrectable };
        if count.is_null() {
            return Err(Status::InvalidArgument);
        }
        let room = count.read();
        count.write(there);
        if room < there {
            return Err(Status::InsufficientSize);
        }
        for page in 0..if addresses.is_null() { 0 } else { there } {
            addresses.add(page as usize).write(c_ulonglong::from(page) << 16);
        }
        Ok(())
    };
    nvmlDeviceGetRetiredPagesPendingStatus (gpu: Handle, to: *mut c_uint) => {
        put(to, reading(gpu, |now| now.pages?.pending)?.into())
    };
    nvmlDeviceGetRemappedRows
        (gpu: Handle, correctable: *mut c_uint, uncorrectable: *mut c_uint, pending: *mut c_uint, failed: *mut c_uint)
        => {
        let rows = reading(gpu, |now| now.rows)?;
        put(correctable, rows.correctable)?;
        put(uncorrectable, rows.uncorrectable)?;
        put(pending, rows.pending.into())?;
        put(failed, rows.failed.into())
    };

    nvmlDeviceGetPcieReplayCounter (gpu: Handle, to: *mut c_uint) => put(to, reading(gpu, |now| now.pcie.replays)?);
    nvmlDeviceValidateInforom (gpu: Handle) => {
        if reading(gpu, |now| now.inforom_corrupt)? { Err(Status::CorruptedInforom) } else { Ok(()) }
    };
    nvmlDeviceGetFieldValues (gpu: Handle, count: c_int, values: *mut FieldValue) => {
        let now = device(gpu)?.readings;
        let count = usize::try_from(count).map_err(|_| Status::InvalidArgument)?;
        for place in 0..if values.is_null() { 0 } else { count } {
            let field = values.add(place);
            let value = match (&raw const (*field).id).read() {
                82 => now.thermal.memory.map(|value| (UNSIGNED_INT, value)),
                193 => now.thermal.shutdown_margin.map(|value| (SIGNED_INT, value)),
                230 => now.recovery_action.and_then(|value| Some((UNSIGNED_INT, c_int::try_from(value).ok()?))),
                _ => None,
            };
            let (kind, value) = value.unwrap_or_default();
            let status = if kind == 0 { Status::NotSupported } else { Status::Success };
            (&raw mut (*field).kind).write(kind);
            (&raw mut (*field).status).write(status as c_uint);
            // All members of the union start at its first byte.
            (&raw mut (*field).value).write(c_longlong::from(value.cast_unsigned()));
        }
        Ok(())
    };
}

fn reading<T>(gpu: Handle, select: impl FnOnce(&Readings) -> Option<T>) -> Result<T, Status> {
    select(&device(gpu)?.readings).ok_or(Status::NotSupported)
}
