//! NVML calls that nvml-wrapper does not wrap, or not completely.
#![allow(unsafe_code, reason = "calling C through nvml-wrapper's bindings is this module's subject")]

use nvml_wrapper::{
    Device,
    error::{NvmlError, nvml_sym, nvml_try},
    struct_wrappers::device::MemoryInfo,
};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEccSramErrorStatus_v1_t, nvmlFieldValue_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
    nvmlMarginTemperature_v1_t, nvmlMemory_t, nvmlValue_st,
};

use crate::nvml::readings::{Fabric, RemappedRows};

/// NVML's code for a structure version that the library does not support.
const VERSION_MISMATCH: u32 = 25;

pub(super) fn version<T>(version: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or_default() | (version << 24)
}

pub(super) fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: the handle is used only by calls that end before the device does.
    unsafe { device.handle() }
}

/// A GPU's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    /// Memory in use. Drivers before R510 include what the driver reserves for itself.
    pub used: u64,
}

pub fn memory(device: &Device<'_>) -> Result<Memory, NvmlError> {
    let lib = device.nvml().lib();
    if lib.nvmlDeviceGetMemoryInfo_v2.is_ok() {
        let MemoryInfo { total, used, .. } = device.memory_info()?;
        return Ok(Memory { total, used });
    }
    // Drivers before R510 have only the older call.
    let call = nvml_sym(lib.nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the handle is the library's own, and the structure outlives the call.
    nvml_try(unsafe { call(handle(device), &raw mut memory) })?;
    Ok(Memory { total: memory.total, used: memory.used })
}

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

pub fn gpu_instance_id(device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: the handle is the library's own, and the number outlives the call.
    nvml_try(unsafe { call(handle(device), &raw mut id) })?;
    Ok(id)
}

/// Returns the reasons for the current clocks, as bits.
pub fn clock_reasons(device: &Device<'_>) -> Result<u64, NvmlError> {
    let lib = device.nvml().lib();
    // Drivers before R535 know it only by its older name.
    let call = nvml_sym(lib.nvmlDeviceGetCurrentClocksEventReasons.as_ref())
        .or_else(|_| nvml_sym(lib.nvmlDeviceGetCurrentClocksThrottleReasons.as_ref()))?;
    let mut reasons = 0;
    // SAFETY: as above; both functions have this signature.
    nvml_try(unsafe { call(handle(device), &raw mut reasons) })?;
    Ok(reasons)
}

/// Returns the degrees Celsius left until the GPU slows down.
pub fn margin_temperature(device: &Device<'_>) -> Result<i64, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMarginTemperature.as_ref())?;
    let mut margin =
        nvmlMarginTemperature_v1_t { version: version::<nvmlMarginTemperature_v1_t>(1), marginTemperature: 0 };
    // SAFETY: the structure has the stated version, and outlives the call.
    nvml_try(unsafe { call(handle(device), &raw mut margin) })?;
    Ok(margin.marginTemperature.into())
}

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

/// Returns the GPU's membership in an NVLink fabric; `None` if it does not join one.
pub fn fabric(device: &Device<'_>) -> Result<Option<Fabric>, NvmlError> {
    let info = fabric_info(device)?;
    let health = (info.healthSummary != 0).then(|| info.healthSummary.into());
    Ok((info.state != 0).then(|| Fabric { state: info.state.into(), status: info.status, health }))
}

/// Returns the cluster and clique of the fabric that the GPU has joined; `None` within a single machine.
pub fn fabric_clique(device: &Device<'_>) -> Option<String> {
    let info = fabric_info(device).ok()?;
    clique(info.state, info.status, info.clusterUuid, info.cliqueId)
}

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
        // SAFETY: as above; the memory is at least as large as the version states.
        code = unsafe { call(handle(device), &raw mut info) };
    }
    nvml_try(code)?;
    Ok(info)
}

/// Returns the value of one of NVML's numbered fields, if it is an integer.
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
    // SAFETY: the count is one, and there is one field.
    nvml_try(unsafe { call(handle(device), 1, &raw mut field) })?;
    nvml_try(field.nvmlReturn)?;
    // SAFETY: the part of the union that is read is the one that the library states it has written; all bits were
    // initialised to zero, and any bits are a valid number.
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
    fn a_clique_is_reported_for_a_joined_fabric_that_spans_machines() {
        let cluster = [0x6b, 0x2c, 0, 1, 2, 3, 0xaa, 0xbb, 4, 5, 6, 7, 8, 9, 0xa, 0xff];
        let expected = Some("6b2c0001-0203-aabb-0405-060708090aff.32766".to_owned());
        assert_eq!(clique(3, 0, cluster, 32766), expected);
        for (state, status, cluster) in [(2, 0, cluster), (3, 999, cluster), (3, 0, [0; 16])] {
            assert_eq!(clique(state, status, cluster, 1), None, "{state} {status}");
        }
    }
}
