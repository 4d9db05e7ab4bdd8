//! NVML's C interface.
#![allow(unsafe_code)] // exporting C functions and writing through their pointers is this module's subject

mod c;
mod instances;
mod links;
mod lists;
mod mig;
mod modes;
mod processes;
mod product;
mod readings;

use std::{
    ffi::{c_char, c_int, c_uint, c_ulonglong},
    ptr,
    time::Duration,
};

use self::c::{
    Handle, NO_INSTANCE, PciInfo, answer, device, export, lib, number, pci_info, put, put_handle, put_text, text,
};
use crate::status::Status;

/// NVML's event bit for XIDs, the only kind of event that the stand-in knows.
const EVENT_XID: c_ulonglong = 0x8;

#[repr(C)]
struct EventData {
    device: Handle,
    kind: c_ulonglong,
    value: c_ulonglong,
    gpu_instance_id: c_uint,
    compute_instance_id: c_uint,
}

// A program compiled against NVML's header passes memory of exactly this size.
const _: () = assert!(size_of::<EventData>() == 32);

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
