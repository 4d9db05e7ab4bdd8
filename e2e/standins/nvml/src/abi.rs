//! NVML's C interface.
#![allow(unsafe_code)] // exporting C functions and writing through their pointers is this module's subject

mod instances;
mod links;
mod lists;
mod mig;
mod modes;
mod processes;
mod product;
mod readings;

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong},
    ptr,
    time::Duration,
};

use crate::{
    library::Library,
    machine::{Device, PciAddress},
    status::Status,
};

/// The handle of a GPU or an event set as a C program stores it: a number in a pointer, which is never dereferenced.
type Handle = *mut libc::c_void;

/// NVML's event bit for XIDs, the only kind of event that the stand-in knows.
const EVENT_XID: c_ulonglong = 0x8;
const NO_INSTANCE: c_uint = c_uint::MAX;

#[repr(C)]
struct PciInfo {
    bus_id_legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [u8; 32],
}

#[repr(C)]
struct EventData {
    device: Handle,
    kind: c_ulonglong,
    value: c_ulonglong,
    gpu_instance_id: c_uint,
    compute_instance_id: c_uint,
}

// A program compiled against NVML's header passes memory of exactly these sizes.
const _: () = assert!(size_of::<PciInfo>() == 68);
const _: () = assert!(size_of::<EventData>() == 32);

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
use export;

export! {
    nvmlInit | nvmlInit_v2 () => lib().init();
    nvmlInitWithFlags (_flags: c_uint) => lib().init();
    nvmlShutdown () => lib().shutdown();

    nvmlSystemGetDriverVersion (to: *mut c_char, length: c_uint) => {
        lib().machine()?;
        put_text(to, length, &lib().driver_version()?)
    };
    nvmlSystemGetNVMLVersion (to: *mut c_char, length: c_uint) => put_text(to, length, &lib().nvml_version()?);
    nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2 (to: *mut c_int) => {
        put(to, lib().machine()?.cuda_number().ok_or(Status::Unknown)?)
    };

    nvmlDeviceGetCount | nvmlDeviceGetCount_v2 (to: *mut c_uint) => put(to, number(lib().machine()?.devices.len())?);
    nvmlDeviceGetHandleByIndex | nvmlDeviceGetHandleByIndex_v2 (index: c_uint, to: *mut Handle) => {
        put_handle(to, lib().find(Status::InvalidArgument, |place, _| place == index as usize)?)
    };
    nvmlDeviceGetHandleByUUID (uuid: *const c_char, to: *mut Handle) => {
        let uuid = text(uuid)?;
        let gpu = lib().find(Status::NotFound, |_, device| device.uuid == uuid);
        put_handle(to, gpu.or_else(|error| mig::find(uuid).ok_or(error))?)
    };
    nvmlDeviceGetHandleBySerial (serial: *const c_char, to: *mut Handle) => {
        let serial = text(serial)?;
        put_handle(to, lib().find(Status::NotFound, |_, device| device.serial.as_deref() == Some(serial))?)
    };
    nvmlDeviceGetHandleByPciBusId | nvmlDeviceGetHandleByPciBusId_v2 (address: *const c_char, to: *mut Handle) => {
        put_handle(to, lib().find_at(text(address)?)?)
    };

    nvmlDeviceGetIndex (gpu: Handle, to: *mut c_uint) => {
        put(to, number(mig::index(gpu).unwrap_or_else(|| lib().device(gpu.addr()).map(|(index, _)| index))?)?)
    };
    nvmlDeviceGetName (gpu: Handle, to: *mut c_char, length: c_uint) => {
        put_text(to, length, &mig::name(gpu).unwrap_or_else(|| device(gpu).map(|device| device.name))?)
    };
    nvmlDeviceGetUUID (gpu: Handle, to: *mut c_char, length: c_uint) => {
        put_text(to, length, &mig::uuid(gpu).unwrap_or_else(|| device(gpu).map(|device| device.uuid))?)
    };
    nvmlDeviceGetSerial (gpu: Handle, to: *mut c_char, length: c_uint) => {
        put_text(to, length, &device(gpu)?.serial.ok_or(Status::NotSupported)?)
    };
    nvmlDeviceGetMinorNumber (gpu: Handle, to: *mut c_uint) => put(to, device(gpu)?.minor);
    nvmlDeviceGetPciInfo | nvmlDeviceGetPciInfo_v2 | nvmlDeviceGetPciInfo_v3 (gpu: Handle, to: *mut PciInfo) => {
        put(to, pci_info(&device(gpu)?)?)
    };

    nvmlDeviceGetSupportedEventTypes (gpu: Handle, to: *mut c_ulonglong) => { device(gpu)?; put(to, EVENT_XID) };
    nvmlEventSetCreate (to: *mut Handle) => put_handle(to, lib().create_event_set()?);
    nvmlEventSetFree (set: Handle) => lib().free_event_set(set.addr());
    nvmlDeviceRegisterEvents (gpu: Handle, kinds: c_ulonglong, set: Handle) => {
        if kinds & !EVENT_XID != 0 {
            return Err(Status::NotSupported);
        }
        lib().register(gpu.addr(), set.addr())
    };
    nvmlEventSetWait | nvmlEventSetWait_v2 (set: Handle, to: *mut EventData, milliseconds: c_uint) => {
        let event = lib().wait(set.addr(), Duration::from_millis(milliseconds.into()))?;
        put(to, EventData {
            device: ptr::without_provenance_mut(lib().handles().of(&event.pci_address)),
            kind: EVENT_XID,
            value: event.xid,
            gpu_instance_id: NO_INSTANCE,
            compute_instance_id: NO_INSTANCE,
        })
    };
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is NVML's")]
extern "C" fn nvmlErrorString(code: c_uint) -> *const c_char {
    Status::from_code(code).text().as_ptr()
}

fn answer(call: impl FnOnce() -> Result<(), Status>) -> Status {
    call().err().unwrap_or(Status::Success)
}

fn lib() -> &'static Library {
    Library::this()
}

fn device(handle: Handle) -> Result<Device, Status> {
    lib().device(handle.addr()).map(|(_, device)| device)
}

fn number(size: usize) -> Result<c_uint, Status> {
    c_uint::try_from(size).map_err(|_| Status::Unknown)
}

fn pci_info(device: &Device) -> Result<PciInfo, Status> {
    let address = PciAddress::parse(&device.pci_address).ok_or(Status::Unknown)?;
    Ok(PciInfo::of(address, device.packed_id().ok_or(Status::Unknown)?))
}

impl PciInfo {
    fn of(address: PciAddress, pci_device_id: c_uint) -> Self {
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
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = from;
    }
    bytes
}

/// # Safety
/// `to` is null or valid for writing a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Status> {
    if to.is_null() {
        return Err(Status::InvalidArgument);
    }
    // SAFETY: not null, and therefore valid by this function's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// # Safety
/// `version` is null or the first word of a structure in the caller's memory.
unsafe fn expect_version(version: *const c_uint, known: &[c_uint]) -> Result<(), Status> {
    // SAFETY: not null, and therefore readable by this function's contract.
    if !version.is_null() && known.contains(&unsafe { version.read() }) {
        Ok(())
    } else {
        Err(Status::ArgumentVersionMismatch)
    }
}

/// # Safety
/// As [`put`].
unsafe fn put_handle(to: *mut Handle, handle: usize) -> Result<(), Status> {
    // SAFETY: the caller fulfils the contract of `put`.
    unsafe { put(to, ptr::without_provenance_mut(handle)) }
}

/// # Safety
/// `to` is null or valid for writing `length` bytes.
unsafe fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Result<(), Status> {
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
unsafe fn text<'a>(from: *const c_char) -> Result<&'a str, Status> {
    if from.is_null() {
        return Err(Status::InvalidArgument);
    }
    // SAFETY: not null, and therefore a string by this function's contract.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| Status::InvalidArgument)
}
