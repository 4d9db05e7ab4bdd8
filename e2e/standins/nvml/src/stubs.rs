//! The remaining functions of NVML. They exist because a program that calls a missing one crashes; they do not answer.
#![allow(unsafe_code)] // exporting C functions is this module's subject

use std::sync::atomic::AtomicBool;

use crate::{library::Library, status::Status, unanswered};

/// Exports functions that return `NVML_ERROR_NOT_SUPPORTED` and report that they were called. They declare only the first of
/// their parameters: in the C calling conventions of the platforms that NVML exists for, only the caller handles the
/// arguments, and these functions read no other.
macro_rules! unanswered {
    ($($name:ident)+) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the name is NVML's")]
            extern "C" fn $name(first: usize) -> Status {
                static REPORTED: AtomicBool = AtomicBool::new(false);
                unanswered::report(Library::this(), stringify!($name), first, &REPORTED);
                Status::NotSupported
            }
        )+
    };
}

/// Exports functions that return `NVML_ERROR_NOT_SUPPORTED`, as NVIDIA's library does for such GPUs.
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
