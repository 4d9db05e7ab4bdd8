//! NVML's calls for the properties of a GPU's model.
#![allow(unsafe_code)] // exporting C functions and writing through their pointers is this module's subject

use std::ffi::{c_int, c_uint, c_ulonglong};

use super::{
    c::{Handle, answer, device, expect_version, export, lib, put},
    mig,
};
use crate::{model, status::Status};

#[repr(C)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
struct Bar1Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
struct AddressingMode {
    version: c_uint,
    value: c_uint,
}

const _: () = assert!(size_of::<Memory>() == 24);
const _: () = assert!(size_of::<MemoryV2>() == 40);
const _: () = assert!(size_of::<Bar1Memory>() == 24);

/// The first word of a correctly prepared `MemoryV2`: version 2 in the upper byte, and its size, 40.
const MEMORY_V2: c_uint = 0x0200_0028;
const ADDRESSING_MODE_V1: c_uint = 0x0100_0008;
const MIB: u64 = 1024 * 1024;
/// The part of the host-addressable memory that is always in use, in bytes.
const BAR1_USED: u64 = 2 * MIB;
/// NVML's number of the addressing mode HMM: programs share the host's memory with the kernel's help, as with the open
/// kernel modules.
const HMM: c_uint = 1;
/// NVML's number of Turing, the first with open kernel modules.
const TURING: u32 = 6;
const LANES: c_uint = 16;

export! {
    nvmlDeviceGetBrand (gpu: Handle, to: *mut c_uint) => put(to, device(gpu)?.model().brand);
    nvmlDeviceGetArchitecture (gpu: Handle, to: *mut c_uint) => put(to, model::architecture(capability(gpu)?));
    nvmlDeviceGetCudaComputeCapability (gpu: Handle, major: *mut c_int, minor: *mut c_int) => {
        let capability = capability(gpu)?;
        put(major, capability.0)?;
        put(minor, capability.1)
    };
    nvmlDeviceGetNumGpuCores (gpu: Handle, to: *mut c_uint) => {
        put(to, device(gpu)?.model().multiprocessors * model::cores(capability(gpu)?))
    };
    nvmlDeviceGetMemoryInfo (gpu: Handle, to: *mut Memory) => {
        let MemoryParts { total, reserved, free, used } = memory(gpu)?;
        put(to, Memory { total, free, used: used + reserved })
    };
    nvmlDeviceGetMemoryInfo_v2 (gpu: Handle, to: *mut MemoryV2) => {
        let MemoryParts { total, reserved, free, used } = memory(gpu)?;
        // The caller states the version in the structure's first word; the rest may be anything.
        expect_version(&raw const (*to).version, &[MEMORY_V2])?;
        put(to, MemoryV2 { version: MEMORY_V2, total, reserved, free, used })
    };
    nvmlDeviceGetBAR1MemoryInfo (gpu: Handle, to: *mut Bar1Memory) => {
        match device(gpu)?.model().bar1_mib * MIB {
            0 => Err(Status::NotSupported),
            total => put(to, Bar1Memory { total, free: total - BAR1_USED, used: BAR1_USED }),
        }
    };
    nvmlDeviceGetAddressingMode (gpu: Handle, to: *mut AddressingMode) => {
        if model::architecture(capability(gpu)?) < TURING {
            return Err(Status::NotSupported);
        }
        expect_version(&raw const (*to).version, &[ADDRESSING_MODE_V1])?;
        put(to, AddressingMode { version: ADDRESSING_MODE_V1, value: HMM })
    };

    nvmlDeviceGetCurrPcieLinkGeneration (gpu: Handle, to: *mut c_uint) => {
        let device = device(gpu)?;
        put(to, device.readings.pcie.generation.unwrap_or(device.model().pcie_generation))
    };
    nvmlDeviceGetMaxPcieLinkGeneration | nvmlDeviceGetGpuMaxPcieLinkGeneration (gpu: Handle, to: *mut c_uint) => {
        let device = device(gpu)?;
        put(to, device.readings.pcie.max_generation.unwrap_or(device.model().pcie_generation))
    };
    nvmlDeviceGetCurrPcieLinkWidth (gpu: Handle, to: *mut c_uint) => {
        put(to, device(gpu)?.readings.pcie.width.unwrap_or(LANES))
    };
    nvmlDeviceGetMaxPcieLinkWidth (gpu: Handle, to: *mut c_uint) => {
        put(to, device(gpu)?.readings.pcie.max_width.unwrap_or(LANES))
    };

    nvmlDeviceGetMultiGpuBoard (gpu: Handle, to: *mut c_uint) => put(to, device(gpu)?.model().twin.into());
    nvmlUnitGetCount (to: *mut c_uint) => { lib().machine()?; put(to, 0) };
}

fn capability(gpu: Handle) -> Result<(i32, i32), Status> {
    device(gpu)?.capability().ok_or(Status::Unknown)
}

/// Memory in bytes. Its parts add up to the total.
struct MemoryParts {
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// Returns the memory of a GPU or a MIG device.
fn memory(gpu: Handle) -> Result<MemoryParts, Status> {
    if let Some(mib) = mig::memory_mib(gpu) {
        let total = mib?.saturating_mul(MIB);
        return Ok(MemoryParts { total, reserved: 0, free: total, used: 0 });
    }
    let device = device(gpu)?;
    if device.model().unified {
        return Err(Status::NotSupported);
    }
    let total = device.memory_mib.saturating_mul(MIB);
    let used = device.readings.memory_used_bytes.unwrap_or_default().min(total);
    let reserved = device.readings.memory_reserved_bytes.unwrap_or_default().min(total - used);
    Ok(MemoryParts { total, reserved, free: total - used - reserved, used })
}
