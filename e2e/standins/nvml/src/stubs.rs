//! The rest of NVML's functions: there, because a program that calls a missing one dies, and without an answer.
#![allow(unsafe_code)] // exporting C functions is this module's subject

use std::sync::atomic::AtomicBool;

use crate::{asked, library::Library, status::Status};

/// Exports functions that answer `NVML_ERROR_NOT_SUPPORTED` and tell that they were asked. They declare one parameter of the
/// several that they may have: in the C calling conventions of the platforms that NVML exists for, the caller alone deals
/// with arguments, and these functions look at no other.
macro_rules! unanswered {
    ($($name:ident)+) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the name is NVML's")]
            extern "C" fn $name(first: usize) -> Status {
                static TOLD: AtomicBool = AtomicBool::new(false);
                asked::tell(Library::this(), stringify!($name), first, &TOLD);
                Status::NotSupported
            }
        )+
    };
}

/// Exports functions that answer `NVML_ERROR_NOT_SUPPORTED`, as NVIDIA's library does for GPUs like these.
macro_rules! refused {
    ($($name:ident)+) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the name is NVML's")]
            extern "C" fn $name() -> Status {
                Status::NotSupported
            }
        )+
    };
}

// From `functions.txt`.
include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
