//! What all functions share: handles, and the memory of C programs.

use std::{
    ffi::{CStr, c_char, c_uint},
    ptr,
};

use crate::{
    library::Library,
    machine::{Device, PciAddress},
    status::Status,
};

/// The handle of a GPU or an event set as a C program stores it: a number in a pointer, which is never dereferenced.
pub(super) type Handle = *mut libc::c_void;

pub(super) const NO_INSTANCE: c_uint = c_uint::MAX;

#[repr(C)]
pub(super) struct PciInfo {
    bus_id_legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [u8; 32],
}

// A program compiled against NVML's header passes memory of exactly this size.
const _: () = assert!(size_of::<PciInfo>() == 68);

/// Exports each function under all the names in front of its arguments. The body runs in an unsafe block and gives
/// a `Result<(), Status>`.
macro_rules! export {
    (@names [] $args:tt $body:expr) => {};
    (@names [$name:ident $($more:ident)*] ($($arg:ident: $kind:ty),*) $body:expr) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, unused_unsafe, reason = "the name is NVML's; some functions take no pointer")]
        unsafe extern "C" fn $name($($arg: $kind),*) -> Status {
            // SAFETY: by NVML's contract each pointer argument is null or points to a value of its type that is
            // valid during the call; the helpers below check for null.
            answer(|| unsafe { $body })
        }
        export!(@names [$($more)*] ($($arg: $kind),*) $body);
    };
    ($($($name:ident)|+ ($($args:tt)*) => $body:expr;)+) => { $(export!(@names [$($name)+] ($($args)*) $body);)+ };
}
pub(super) use export;

pub(super) fn answer(call: impl FnOnce() -> Result<(), Status>) -> Status {
    call().err().unwrap_or(Status::Success)
}

pub(super) fn lib() -> &'static Library {
    Library::this()
}

pub(super) fn device(handle: Handle) -> Result<Device, Status> {
    lib().device(handle.addr()).map(|(_, device)| device)
}

pub(super) fn number(size: usize) -> Result<c_uint, Status> {
    c_uint::try_from(size).map_err(|_| Status::Unknown)
}

pub(super) fn pci_info(device: &Device) -> Result<PciInfo, Status> {
    let address = PciAddress::parse(&device.pci_address).ok_or(Status::Unknown)?;
    Ok(PciInfo::of(address, device.packed_id().ok_or(Status::Unknown)?))
}

impl PciInfo {
    pub(super) fn of(address: PciAddress, pci_device_id: c_uint) -> Self {
        let PciAddress { domain, bus, device } = address;
        Self {
            bus_id_legacy: padded(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
            domain,
            bus,
            device,
            pci_device_id,
            pci_subsystem_id: 0,
            bus_id: padded(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
        }
    }
}

/// Returns the text, truncated if necessary so that a NUL follows it.
pub(super) fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = from;
    }
    bytes
}

/// # Safety
/// `to` is null or valid for writing a `T`.
pub(super) unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Status> {
    if to.is_null() {
        return Err(Status::InvalidArgument);
    }
    // SAFETY: not null, and therefore valid by this function's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// # Safety
/// `version` is null or the first word of a structure in the caller's memory.
pub(super) unsafe fn expect_version(version: *const c_uint, known: &[c_uint]) -> Result<(), Status> {
    // SAFETY: not null, and therefore readable by this function's contract.
    if !version.is_null() && known.contains(&unsafe { version.read() }) {
        Ok(())
    } else {
        Err(Status::ArgumentVersionMismatch)
    }
}

/// # Safety
/// As [`put`].
pub(super) unsafe fn put_handle(to: *mut Handle, handle: usize) -> Result<(), Status> {
    // SAFETY: the caller fulfils the contract of `put`.
    unsafe { put(to, ptr::without_provenance_mut(handle)) }
}

/// # Safety
/// `to` is null or valid for writing `length` bytes.
pub(super) unsafe fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Result<(), Status> {
    if to.is_null() {
        return Err(Status::InvalidArgument);
    }
    if text.len() >= length as usize {
        return Err(Status::InsufficientSize);
    }
    // SAFETY: the text and its NUL fit into the caller's `length` bytes; the two cannot overlap, because the text is in
    // this library's own memory.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// # Safety
/// `from` is null or a NUL-terminated string that outlives the returned reference.
pub(super) unsafe fn text<'a>(from: *const c_char) -> Result<&'a str, Status> {
    if from.is_null() {
        return Err(Status::InvalidArgument);
    }
    // SAFETY: not null, and therefore a string by this function's contract.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| Status::InvalidArgument)
}
