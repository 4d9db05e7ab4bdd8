//! NVML's calls for MIG mode and for MIG devices.
#![allow(unsafe_code)] // exporting C functions and writing through their pointers is this module's subject

use std::{
    ffi::{c_uint, c_ulonglong},
    ptr,
};

use super::c::{Handle, answer, device, export, lib, put, put_handle};
use crate::{
    handle,
    machine::Device,
    mig::{Engines, Instance, Profile},
    status::Status,
};

#[repr(C)]
struct Attributes {
    multiprocessors: c_uint,
    copy_engines: c_uint,
    decoders: c_uint,
    encoders: c_uint,
    jpeg: c_uint,
    ofa: c_uint,
    gpu_slices: c_uint,
    compute_slices: c_uint,
    memory_mib: c_ulonglong,
}

const _: () = assert!(size_of::<Attributes>() == 40);

/// The maximum number of MIG devices of a GPU.
const MAX_MIG_DEVICES: c_uint = 7;

export! {
    nvmlDeviceGetMigMode (gpu: Handle, current: *mut c_uint, pending: *mut c_uint) => {
        let device = device(gpu)?;
        let (now, then) = match device.readings.mig {
            Some(on) => (on, on),
            None => lib().division(&device).map(|division| (division.enabled, division.pending))?,
        };
        put(current, now.into())?;
        put(pending, then.into())
    };
    nvmlDeviceSetMigMode (gpu: Handle, mode: c_uint, activation: *mut Status) => {
        let device = device(gpu)?;
        let done = lib().set_mig_mode(&device, mode != 0);
        if done == Err(Status::NotSupported) {
            return done;
        }
        put(activation, done.err().unwrap_or(Status::Success))
    };
    nvmlDeviceGetMaxMigDeviceCount (gpu: Handle, to: *mut c_uint) => {
        put(to, if device(gpu)?.has_mig() { MAX_MIG_DEVICES } else { 0 })
    };
    nvmlDeviceIsMigDeviceHandle (gpu: Handle, to: *mut c_uint) => put(to, handle::is_mig_device(gpu.addr()).into());
    nvmlDeviceGetMigDeviceHandleByIndex (gpu: Handle, index: c_uint, to: *mut Handle) => {
        let instances = lib().division(&with_mig(gpu)?)?.instances;
        let instance = instances.iter().filter(|instance| instance.compute).nth(index as usize);
        let instance = instance.ok_or(Status::NotFound)?;
        put_handle(to, handle::compute(handle::instance(gpu.addr(), instance.id)))
    };
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle (gpu: Handle, to: *mut Handle) => {
        put_handle(to, instance_of(gpu)?.0.addr())
    };
    nvmlDeviceGetGpuInstanceId (gpu: Handle, to: *mut c_uint) => put(to, instance_of(gpu)?.2.id);
    nvmlDeviceGetComputeInstanceId (gpu: Handle, to: *mut c_uint) => { instance_of(gpu)?; put(to, 0) };
    nvmlDeviceGetAttributes | nvmlDeviceGetAttributes_v2 (gpu: Handle, to: *mut Attributes) => {
        if !handle::is_mig_device(gpu.addr()) {
            device(gpu)?;
            return Err(Status::NotSupported);
        }
        let (_, device, instance) = instance_of(gpu)?;
        let profile = Profile::numbered(instance.profile)?;
        let Engines { multiprocessors, copy, decoders, jpeg, ofa } = profile.engines(&device.model());
        put(to, Attributes {
            multiprocessors,
            copy_engines: copy,
            decoders,
            encoders: 0,
            jpeg,
            ofa,
            gpu_slices: profile.slices,
            compute_slices: profile.slices,
            memory_mib: profile.memory_mib(device.memory_mib),
        })
    };
}

pub(super) fn with_mig(gpu: Handle) -> Result<Device, Status> {
    device(gpu).and_then(|device| if device.has_mig() { Ok(device) } else { Err(Status::NotSupported) })
}

/// Returns a MIG device's name; `None` for a GPU's handle.
pub(super) fn name(handle: Handle) -> Option<Result<String, Status>> {
    mig_device(handle, |device, instance| {
        Ok(format!("{} {}", device.name, Profile::numbered(instance.profile)?.name(device.memory_mib)))
    })
}

/// Returns a MIG device's UUID; `None` for a GPU's handle.
pub(super) fn uuid(handle: Handle) -> Option<Result<String, Status>> {
    mig_device(handle, |device, instance| Ok(uuid_of(device, instance)))
}

/// Returns a MIG device's memory, in MiB; `None` for a GPU's handle.
pub(super) fn memory_mib(handle: Handle) -> Option<Result<u64, Status>> {
    mig_device(handle, |device, instance| {
        Profile::numbered(instance.profile).map(|profile| profile.memory_mib(device.memory_mib))
    })
}

/// Returns a MIG device's index among those of its GPU; `None` for a GPU's handle.
pub(super) fn index(handle: Handle) -> Option<Result<usize, Status>> {
    mig_device(handle, |device, instance| {
        let instances = lib().division(device)?.instances;
        let mut devices = instances.iter().filter(|other| other.compute);
        devices.position(|other| other.id == instance.id).ok_or(Status::NotFound)
    })
}

/// Returns the handle of the MIG device with this UUID.
pub(super) fn find(uuid: &str) -> Option<usize> {
    let machine = lib().machine().ok()?;
    machine.devices.iter().find_map(|device| {
        let instances = lib().division(device).ok()?.instances;
        let instance = instances.iter().find(|instance| instance.compute && uuid_of(device, instance) == uuid)?;
        Some(handle::compute(handle::instance(lib().handles().of(&device.pci_address), instance.id)))
    })
}

/// Returns the UUID of a MIG device: that of its GPU, with the instance's id instead of the part before the first dash.
fn uuid_of(device: &Device, instance: &Instance) -> String {
    let gpu = device.uuid.trim_start_matches("GPU-");
    let rest = gpu.split_once('-').map_or(gpu, |(_, rest)| rest);
    format!("MIG-{:08x}-{rest}", instance.id)
}

/// Returns the result of `query` for a MIG device; `None` for a GPU's handle.
fn mig_device<T>(
    handle: Handle,
    query: impl FnOnce(&Device, &Instance) -> Result<T, Status>,
) -> Option<Result<T, Status>> {
    handle::is_mig_device(handle.addr())
        .then(|| instance_of(handle).and_then(|(_, device, instance)| query(&device, &instance)))
}

/// Returns the instance with this handle, or whose compute instance has this handle, and its GPU.
pub(super) fn instance_of(handle: Handle) -> Result<(Handle, Device, Instance), Status> {
    let gpu = ptr::without_provenance_mut(handle::gpu(handle.addr()));
    let device = with_mig(gpu)?;
    let instances = lib().division(&device)?.instances;
    let found = instances.into_iter().find(|instance| instance.id as usize == handle::instance_id(handle.addr()));
    Ok((gpu, device, found.ok_or(Status::InvalidArgument)?))
}
