//! The part of CUDA's driver API that the probe uses.
#![allow(unsafe_code)] // exporting C functions and writing through their pointers is this module's subject

use std::{
    ffi::{CStr, c_char, c_int, c_uint},
    ptr,
};

use crate::{Library, Status};

const NAMES: [(c_int, &CStr); 4] = [
    (0, c"CUDA_SUCCESS"),
    (1, c"CUDA_ERROR_INVALID_VALUE"),
    (100, c"CUDA_ERROR_NO_DEVICE"),
    (802, c"CUDA_ERROR_SYSTEM_NOT_READY"),
];

/// Like the real library it needs what NVML needs, and finds no device without a driver.
#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> c_int {
    if flags != 0 {
        return 1;
    }
    let library = Library::this();
    let initialised = library.init().and_then(|()| library.machine()).map(|machine| machine.cuda_error);
    let _ = library.shutdown();
    initialised.map_or_else(of_status, |code| c_int::try_from(code).unwrap_or(999))
}

fn of_status(_: Status) -> c_int {
    100
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(error: c_int, name: *mut *const c_char) -> c_int {
    let known = NAMES.iter().find(|(code, _)| *code == error);
    // SAFETY: by CUDA's contract the pointer is to a value of its type.
    unsafe { name.write(known.map_or(ptr::null(), |(_, name)| name.as_ptr())) };
    c_int::from(known.is_none())
}
