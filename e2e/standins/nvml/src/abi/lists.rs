//! Lists that the library writes into a caller's memory.
#![allow(unsafe_code)] // writing through C's pointers is this module's subject

use std::ffi::c_uint;

use super::{number, put};
use crate::status::Status;

/// Writes as many as there are, where `count` says that there is room.
///
/// # Safety
/// `count` is null or valid, and `to` is null or valid for writing as many as `count` says.
pub(super) unsafe fn fill<T>(values: Vec<T>, to: *mut T, count: *mut c_uint) -> Result<(), Status> {
    if count.is_null() {
        return Err(Status::InvalidArgument);
    }
    // SAFETY: not null, and so readable by this function's own contract.
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
    // SAFETY: there is room for all of them.
    unsafe { write_all(values, to) };
    Ok(())
}

/// Writes all of them: how many can be there at most the caller knows from their profile, and has room for.
///
/// # Safety
/// `count` is null or valid, and `to` is null or valid for writing all.
pub(super) unsafe fn put_all<T>(values: Vec<T>, to: *mut T, count: *mut c_uint) -> Result<(), Status> {
    if to.is_null() {
        return Err(Status::InvalidArgument);
    }
    // SAFETY: the caller promises what `put` asks.
    unsafe { put(count, number(values.len())?)? };
    // SAFETY: the caller has room for all.
    unsafe { write_all(values, to) };
    Ok(())
}

/// # Safety
/// `to` is valid for writing all.
unsafe fn write_all<T>(values: Vec<T>, to: *mut T) {
    for (place, value) in values.into_iter().enumerate() {
        // SAFETY: within what the caller lends.
        unsafe { to.add(place).write(value) };
    }
}
