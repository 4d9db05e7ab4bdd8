//! The calls of NVML that nvml-wrapper does not wrap, or not as far as they are needed.
#![allow(unsafe_code, reason = "calling C through nvml-wrapper's bindings is this module's subject")]

use nvml_wrapper::{
    Device,
    error::{NvmlError, nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEccSramErrorStatus_v1_t, nvmlFieldValue_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
    nvmlMarginTemperature_v1_t, nvmlMemory_t, nvmlValue_st,
};

use crate::health::readings::{Fabric, RemappedRows};

/// NVML's code for a structure of a version that the library does not know.
const VERSION_MISMATCH: u32 = 25;

/// The first word of NVML's versioned structures.
pub(super) fn version<T>(version: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or_default() | (version << 24)
}

/// The library's own name for a GPU.
pub(super) fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: the handle is only lent to calls that end before the device does.
    unsafe { device.handle() }
}

/// Memory rows that are replaced.
pub fn remapped_rows(device: &Device<'_>) -> Result<RemappedRows, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRemappedRows.as_ref())?;
    let (mut correctable, mut uncorrectable, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle is the library's own, and the four pointers are to values that outlive the call.
    let code = unsafe {
        call(handle(device), &raw mut correctable, &raw mut uncorrectable, &raw mut pending, &raw mut failed)
    };
    nvml_try(code)?;
    Ok(RemappedRows {
        correctable: correctable.into(),
        uncorrectable: uncorrectable.into(),
        pending: pending != 0,
        failed: failed != 0,
    })
}

/// Why the clocks are what they are, as bits.
pub fn clock_reasons(device: &Device<'_>) -> Result<u64, NvmlError> {
    let lib = device.nvml().lib();
    // Drivers before R535 know it by its older name only.
    let call = nvml_sym(lib.nvmlDeviceGetCurrentClocksEventReasons.as_ref())
        .or_else(|_| nvml_sym(lib.nvmlDeviceGetCurrentClocksThrottleReasons.as_ref()))?;
    let mut reasons = 0;
    // SAFETY: as above; both functions have this signature.
    nvml_try(unsafe { call(handle(device), &raw mut reasons) })?;
    Ok(reasons)
}

/// Degrees Celsius that are left until the GPU slows down.
pub fn margin_temperature(device: &Device<'_>) -> Result<i64, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMarginTemperature.as_ref())?;
    let mut margin =
        nvmlMarginTemperature_v1_t { version: version::<nvmlMarginTemperature_v1_t>(1), marginTemperature: 0 };
    // SAFETY: the structure is of the version that it says, and outlives the call.
    nvml_try(unsafe { call(handle(device), &raw mut margin) })?;
    Ok(margin.marginTemperature.into())
}

/// Whether the SRAM has had too many uncorrectable errors.
pub fn sram_threshold_exceeded(device: &Device<'_>) -> Result<bool, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetSramEccErrorStatus.as_ref())?;
    let mut status = nvmlEccSramErrorStatus_v1_t {
        version: version::<nvmlEccSramErrorStatus_v1_t>(1),
        aggregateUncParity: 0,
        aggregateUncSecDed: 0,
        aggregateCor: 0,
        volatileUncParity: 0,
        volatileUncSecDed: 0,
        volatileCor: 0,
        aggregateUncBucketL2: 0,
        aggregateUncBucketSm: 0,
        aggregateUncBucketPcie: 0,
        aggregateUncBucketMcu: 0,
        aggregateUncBucketOther: 0,
        bThresholdExceeded: 0,
    };
    // SAFETY: as above.
    nvml_try(unsafe { call(handle(device), &raw mut status) })?;
    Ok(status.bThresholdExceeded != 0)
}

/// The GPU's place in the NVLink fabric; nothing where it is to join none.
pub fn fabric(device: &Device<'_>) -> Result<Option<Fabric>, NvmlError> {
    let info = fabric_info(device)?;
    let health = (info.healthSummary != 0).then(|| info.healthSummary.into());
    Ok((info.state != 0).then(|| Fabric { state: info.state.into(), status: info.status, health }))
}

/// Of a fabric that the GPU has joined, its cluster and its clique there; nothing within a single machine.
pub fn fabric_clique(device: &Device<'_>) -> Option<String> {
    let info = fabric_info(device).ok()?;
    clique(info.state, info.status, info.clusterUuid, info.cliqueId)
}

/// The clique as it is written, once joining has ended well.
fn clique(state: u8, status: u32, cluster: [u8; 16], clique: u32) -> Option<String> {
    const JOINED: u8 = 3;
    if state != JOINED || status != 0 || cluster == [0; 16] {
        return None;
    }
    let hex = format!("{:032x}", u128::from_be_bytes(cluster));
    Some(format!("{}-{}-{}-{}-{}.{clique}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

fn fabric_info(device: &Device<'_>) -> Result<nvmlGpuFabricInfo_v3_t, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfoV.as_ref())?;
    let mut info = nvmlGpuFabricInfo_v3_t {
        version: version::<nvmlGpuFabricInfo_v3_t>(3),
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    // SAFETY: as above.
    let mut code = unsafe { call(handle(device), &raw mut info) };
    if code == VERSION_MISMATCH {
        // The fields of version 2 are the first of version 3.
        info.version = version::<nvmlGpuFabricInfo_v2_t>(2);
        // SAFETY: as above; the memory is at least of the size that the version says.
        code = unsafe { call(handle(device), &raw mut info) };
    }
    nvml_try(code)?;
    Ok(info)
}

/// All of the GPU's memory, in bytes, by the call that every driver has: that of nvml-wrapper is there from R510 on.
pub fn memory_bytes(device: &Device<'_>) -> Result<u64, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: as above.
    nvml_try(unsafe { call(handle(device), &raw mut memory) })?;
    Ok(memory.total)
}

/// The value of one of NVML's numbered fields, if it is a whole number.
pub fn field(device: &Device<'_>, id: u32) -> Result<i64, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
    let mut field = nvmlFieldValue_t {
        fieldId: id,
        scopeId: 0,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        nvmlReturn: 0,
        value: nvmlValue_st { ullVal: 0 },
    };
    // SAFETY: one field is announced, and one is there.
    nvml_try(unsafe { call(handle(device), 1, &raw mut field) })?;
    nvml_try(field.nvmlReturn)?;
    // SAFETY: of the union's parts, that one is read which the library says it has written; all began as zeros, and any
    // bits are a number.
    let value = unsafe {
        match field.valueType {
            1 => Some(field.value.uiVal.into()),
            2 => i64::try_from(field.value.ulVal).ok(),
            3 => i64::try_from(field.value.ullVal).ok(),
            4 => Some(field.value.sllVal),
            5 => Some(field.value.siVal.into()),
            6 => Some(field.value.usVal.into()),
            _ => None,
        }
    };
    value.ok_or(NvmlError::NoData)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clique_is_told_of_a_fabric_that_the_gpu_has_joined_and_that_spans_machines() {
        let cluster = [0x6b, 0x2c, 0, 1, 2, 3, 0xaa, 0xbb, 4, 5, 6, 7, 8, 9, 0xa, 0xff];
        let told = Some("6b2c0001-0203-aabb-0405-060708090aff.32766".to_owned());
        assert_eq!(clique(3, 0, cluster, 32766), told);
        for (state, status, cluster) in [(2, 0, cluster), (3, 999, cluster), (3, 0, [0; 16])] {
            assert_eq!(clique(state, status, cluster, 1), None, "{state} {status}");
        }
    }
}
