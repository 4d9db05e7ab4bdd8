//! Lists that the library writes into a caller's memory.
#![allow(unsafe_code)] // writing through C's pointers is this module's subject

use std::ffi::c_uint;

use super::c::{number, put};
use crate::status::Status;

/// Writes all values if `count`, the room in `to`, is large enough. Sets `count` to the number of values.
///
/// # Safety
/// `count` is null or valid, and `to` is null or valid for writing `count` values.
pub(super) unsafe fn fill<T>(values: Vec<T>, to: *mut T, count: *mut c_uint) -> Result<(), Status> {
    if count.is_null() {
        return Err(Status::InvalidArgument);
    }
    // SAFETY: not null, and therefore readable by this function's contract.
    let room = unsafe { count.read() } as usize;
    let there = values.len();
    // SAFETY: as above.
    unsafe { put(count, number(there)?)? };
    if to.is_null() {
        return if there == 0 || room == 0 { Ok(()) } else { Err(Status::InvalidArgument) };
    }
    if room < there {
        return Err(Status::InsufficientSize);
    }
    // SAFETY: there is room for all values.
    unsafe { write_all(values, to) };
    Ok(())
}

/// Writes all values. The caller knows their maximum number from the profile, and has room for them.
///
/// # Safety
/// `count` is null or valid, and `to` is null or valid for writing all values.
pub(super) unsafe fn put_all<T>(values: Vec<T>, to: *mut T, count: *mut c_uint) -> Result<(), Status> {
    if to.is_null() {
        return Err(Status::InvalidArgument);
    }
    // SAFETY: the caller fulfils the contract of `put`.
    unsafe { put(count, number(values.len())?)? };
    // SAFETY: the caller has room for all values.
    unsafe { write_all(values, to) };
    Ok(())
}

/// # Safety
/// `to` is valid for writing all values.
unsafe fn write_all<T>(values: Vec<T>, to: *mut T) {
    for (place, value) in values.into_iter().enumerate() {
        // SAFETY: within the caller's memory.
        unsafe { to.add(place).write(value) };
    }
}
