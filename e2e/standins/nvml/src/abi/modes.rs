//! NVML's calls for a GPU's modes.
#![allow(unsafe_code)] // exporting C functions and writing through their pointers is this module's subject

use std::ffi::c_uint;

use super::c::{Handle, answer, device, export, lib, put};
use crate::{modes::Modes, status::Status};

/// NVML's compute modes up to `EXCLUSIVE_PROCESS`.
const COMPUTE_MODES: c_uint = 4;
/// NVML's number of a mode that is off, and of a GPU that is not virtual.
const NONE: c_uint = 0;

export! {
    nvmlDeviceGetComputeMode (gpu: Handle, to: *mut c_uint) => put(to, lib().modes(&device(gpu)?)?.0);
    nvmlDeviceSetComputeMode (gpu: Handle, mode: c_uint) => {
        let device = device(gpu)?;
        if mode >= COMPUTE_MODES {
            return Err(Status::InvalidArgument);
        }
        if lib().division(&device).is_ok_and(|division| division.enabled) {
            return Err(Status::NotSupported);
        }
        lib().set(&device, Modes { compute: Some(mode), ..Modes::default() })
    };
    nvmlDeviceGetPersistenceMode (gpu: Handle, to: *mut c_uint) => put(to, lib().modes(&device(gpu)?)?.1.into());
    nvmlDeviceSetPersistenceMode (gpu: Handle, mode: c_uint) => {
        lib().set(&device(gpu)?, Modes { persistence: Some(mode != 0), ..Modes::default() })
    };
    nvmlDeviceGetDisplayMode | nvmlDeviceGetDisplayActive (gpu: Handle, to: *mut c_uint) => {
        device(gpu)?;
        put(to, NONE)
    };
    nvmlDeviceGetVirtualizationMode (gpu: Handle, to: *mut c_uint) => { device(gpu)?; put(to, NONE) };
}
