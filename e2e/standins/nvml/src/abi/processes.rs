//! NVML's calls for the processes on a GPU.
#![allow(unsafe_code)] // exporting C functions and writing through their pointers is this module's subject

use std::ffi::{c_uint, c_ulonglong};

use super::{
    c::{Handle, NO_INSTANCE, answer, device, export, number, put},
    lists::fill,
};
use crate::{machine::Device, mig::Client, status::Status};

/// Version 1.
#[repr(C)]
struct ProcessInfoV1 {
    pid: c_uint,
    memory: c_ulonglong,
}

/// Versions 2 and 3.
#[repr(C)]
struct ProcessInfo {
    pid: c_uint,
    memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

const _: () = assert!(size_of::<ProcessInfoV1>() == 16);
const _: () = assert!(size_of::<ProcessInfo>() == 24);

export! {
    nvmlDeviceGetComputeRunningProcesses (gpu: Handle, count: *mut c_uint, to: *mut ProcessInfoV1) => {
        list(gpu, count, to, |client| ProcessInfoV1 { pid: client.pid, memory: 0 })
    };
    nvmlDeviceGetComputeRunningProcesses_v2 | nvmlDeviceGetComputeRunningProcesses_v3
        (gpu: Handle, count: *mut c_uint, to: *mut ProcessInfo) => {
        list(gpu, count, to, |client| ProcessInfo {
            pid: client.pid,
            memory: 0,
            gpu_instance: client.instance.unwrap_or(NO_INSTANCE),
            compute_instance: client.instance.map_or(NO_INSTANCE, |_| 0),
        })
    };
    nvmlDeviceGetGraphicsRunningProcesses | nvmlDeviceGetGraphicsRunningProcesses_v2
        | nvmlDeviceGetGraphicsRunningProcesses_v3
        | nvmlDeviceGetMPSComputeRunningProcesses | nvmlDeviceGetMPSComputeRunningProcesses_v2
        | nvmlDeviceGetMPSComputeRunningProcesses_v3 (gpu: Handle, count: *mut c_uint) => {
        device(gpu)?;
        put(count, 0)
    };
}

/// # Safety
/// As [`fill`].
unsafe fn list<T>(gpu: Handle, count: *mut c_uint, to: *mut T, process: impl Fn(&Client) -> T) -> Result<(), Status> {
    let Device { mig, readings, .. } = device(gpu)?;
    let clients = mig.map(|mig| mig.clients).unwrap_or_default();
    if clients.is_empty() {
        let there = readings.processes.unwrap_or_default();
        // Only their number is known.
        // SAFETY: the caller fulfils the contract of `put`.
        unsafe { put(count, there)? };
        return if there == 0 { Ok(()) } else { Err(Status::InsufficientSize) };
    }
    if to.is_null() {
        // SAFETY: as above.
        unsafe { put(count, number(clients.len())?)? };
        return Err(Status::InsufficientSize);
    }
    // SAFETY: the caller fulfils the contract of `fill`.
    unsafe { fill(clients.iter().map(process).collect(), to, count) }
}
