//! The calls of CUDA's driver API.
#![allow(unsafe_code, reason = "calling the C interface of NVIDIA's library is this module's subject")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint},
    path::Path,
    ptr,
};

use libloading::{Error, Library, Symbol};

type CuInit = unsafe extern "C" fn(flags: c_uint) -> c_int;
type CuGetErrorName = unsafe extern "C" fn(error: c_int, name: *mut *const c_char) -> c_int;

/// Loads the library and calls `cuInit`. Returns its result and the name of that, which is empty if the library does not know it.
pub fn init(path: &Path) -> Result<(u32, String), Error> {
    // SAFETY: loading a library runs its initialisers. This one belongs to root, and this process exists only to load it.
    let library = unsafe { Library::new(path) }?;
    // SAFETY: the type is that of NVIDIA's header cuda.h, which has not changed since CUDA 1.
    let init: Symbol<'_, CuInit> = unsafe { library.get(b"cuInit\0") }?;
    // SAFETY: flags must be 0, and the call has no other conditions.
    let code = unsafe { init(0) };
    let name = name(&library, code);
    // It may have started threads, so it stays loaded until the process ends.
    std::mem::forget(library);
    Ok((code.unsigned_abs(), name))
}

/// The libraries of CUDA 6.0 and later have the function.
fn name(library: &Library, code: c_int) -> String {
    // SAFETY: the type is that of NVIDIA's header cuda.h.
    let Ok(name_of) = (unsafe { library.get::<CuGetErrorName>(b"cuGetErrorName\0") }) else { return String::new() };
    let mut name = ptr::null();
    // SAFETY: the pointer is to a value that outlives the call. It is set to null, or to a constant of the library.
    unsafe {
        name_of(code, &raw mut name);
        if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
    }
}
