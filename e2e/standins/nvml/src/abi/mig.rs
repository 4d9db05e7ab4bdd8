//! NVML's calls for MIG.
#![allow(unsafe_code)] // exporting C functions and writing through their pointers is this module's subject

use std::{
    ffi::{c_uint, c_ulonglong},
    ptr,
};

use super::{Handle, answer, device, export, lib, number, padded, put, put_handle};
use crate::{
    machine::Device,
    mig::{Client, Instance, Profile},
    status::Status,
};

/// Version 2, whose predecessors have no name.
#[repr(C)]
struct GpuInstanceProfile {
    version: c_uint,
    id: c_uint,
    peer_to_peer: c_uint,
    slices: c_uint,
    instances: c_uint,
    multiprocessors: c_uint,
    engines: [c_uint; 5],
    memory_mib: c_ulonglong,
    name: [u8; 96],
}

#[repr(C)]
struct Placement {
    start: c_uint,
    size: c_uint,
}

#[repr(C)]
struct GpuInstanceInfo {
    device: Handle,
    id: c_uint,
    profile: c_uint,
    placement: Placement,
}

#[repr(C)]
struct ComputeInstanceProfile {
    id: c_uint,
    slices: c_uint,
    instances: c_uint,
    multiprocessors: c_uint,
    engines: [c_uint; 5],
}

#[repr(C)]
struct ProcessInfo {
    pid: c_uint,
    memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

const _: () = assert!(size_of::<GpuInstanceProfile>() == 152);
const _: () = assert!(size_of::<GpuInstanceInfo>() == 24);
const _: () = assert!(size_of::<ComputeInstanceProfile>() == 36);
const _: () = assert!(size_of::<ProcessInfo>() == 24);

/// The first word of a `GpuInstanceProfile` that the caller prepared rightly.
const PROFILE_V2: c_uint = 0x0200_0098;
const NO_INSTANCE: c_uint = c_uint::MAX;

/// The handle of an instance is its GPU's, and its number above that; a compute instance's has one more bit.
const NUMBER: u32 = 16;
const COMPUTE: usize = 1 << 40;

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
    nvmlDeviceGetGpuInstanceProfileInfoV (gpu: Handle, index: c_uint, to: *mut GpuInstanceProfile) => {
        let device = with_mig(gpu)?;
        let profile = Profile::at(index)?;
        if to.is_null() || (&raw const (*to).version).read() != PROFILE_V2 {
            return Err(Status::ArgumentVersionMismatch);
        }
        put(to, GpuInstanceProfile {
            version: PROFILE_V2,
            id: profile.id,
            peer_to_peer: 0,
            slices: profile.slices,
            instances: profile.most,
            multiprocessors: 16 * profile.slices,
            engines: [0; 5],
            memory_mib: device.memory_mib * u64::from(profile.size) / 8,
            name: padded(&profile.name(device.memory_mib)),
        })
    };
    nvmlDeviceGetGpuInstancePossiblePlacements_v2
        (gpu: Handle, profile: c_uint, to: *mut Placement, count: *mut c_uint) => {
        with_mig(gpu)?;
        let profile = Profile::numbered(profile)?;
        fill(profile.starts.iter().map(|start| Placement { start: *start, size: profile.size }).collect(), to, count)
    };
    nvmlDeviceCreateGpuInstanceWithPlacement
        (gpu: Handle, profile: c_uint, place: *const Placement, to: *mut Handle) => {
        let device = with_mig(gpu)?;
        if place.is_null() {
            return Err(Status::InvalidArgument);
        }
        let id = lib().create_instance(&device, profile, (&raw const (*place).start).read())?;
        put_handle(to, gpu.addr() | (id as usize) << NUMBER)
    };
    nvmlDeviceGetGpuInstances (gpu: Handle, profile: c_uint, to: *mut Handle, count: *mut c_uint) => {
        let division = lib().division(&with_mig(gpu)?)?;
        if !division.enabled {
            return Err(Status::NotSupported);
        }
        let handle = |instance: &Instance| ptr::without_provenance_mut(gpu.addr() | (instance.id as usize) << NUMBER);
        put_all(division.instances.iter().filter(|instance| instance.profile == profile).map(handle).collect(), to, count)
    };
    nvmlGpuInstanceGetInfo (instance: Handle, to: *mut GpuInstanceInfo) => {
        let (gpu, _, instance) = instance_of(instance)?;
        let placement = Placement { start: instance.start, size: Profile::numbered(instance.profile)?.size };
        put(to, GpuInstanceInfo { device: gpu, id: instance.id, profile: instance.profile, placement })
    };
    nvmlGpuInstanceDestroy (instance: Handle) => {
        let (_, device, instance) = instance_of(instance)?;
        lib().destroy_instance(&device, instance.id)
    };
    nvmlGpuInstanceGetComputeInstanceProfileInfo
        (instance: Handle, index: c_uint, _engines: c_uint, to: *mut ComputeInstanceProfile) => {
        let (_, _, instance) = instance_of(instance)?;
        let slices = Profile::numbered(instance.profile)?.slices;
        // Only that which takes all of the instance.
        let whole = [1, 2, 3, 4, 7, 8, 6].get(index as usize).is_some_and(|those| *those == slices);
        if !whole {
            return Err(Status::NotSupported);
        }
        put(to, ComputeInstanceProfile { id: index, slices, instances: 1, multiprocessors: 16 * slices, engines: [0; 5] })
    };
    nvmlGpuInstanceGetComputeInstances (instance: Handle, _profile: c_uint, to: *mut Handle, count: *mut c_uint) => {
        let handle = ptr::without_provenance_mut(instance.addr() | COMPUTE);
        let (_, _, instance) = instance_of(instance)?;
        put_all(instance.compute.then_some(handle).into_iter().collect(), to, count)
    };
    nvmlGpuInstanceCreateComputeInstance (instance: Handle, _profile: c_uint, to: *mut Handle) => {
        let handle = instance.addr() | COMPUTE;
        let (_, device, instance) = instance_of(instance)?;
        lib().set_compute(&device, instance.id, true)?;
        put_handle(to, handle)
    };
    nvmlComputeInstanceDestroy (compute: Handle) => {
        let (_, device, instance) = instance_of(compute)?;
        lib().set_compute(&device, instance.id, false)
    };
    nvmlDeviceGetMaxMigDeviceCount (gpu: Handle, to: *mut c_uint) => {
        put(to, if device(gpu)?.mig.is_some() { 7 } else { 0 })
    };
    nvmlDeviceIsMigDeviceHandle (gpu: Handle, to: *mut c_uint) => put(to, is_mig_device(gpu).into());
    nvmlDeviceGetMigDeviceHandleByIndex (gpu: Handle, index: c_uint, to: *mut Handle) => {
        let instances = lib().division(&with_mig(gpu)?)?.instances;
        let instance = instances.iter().filter(|instance| instance.compute).nth(index as usize);
        let instance = instance.ok_or(Status::NotFound)?;
        put_handle(to, gpu.addr() | (instance.id as usize) << NUMBER | COMPUTE)
    };
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle (gpu: Handle, to: *mut Handle) => {
        put_handle(to, instance_of(gpu)?.0.addr())
    };
    nvmlDeviceGetGpuInstanceId (gpu: Handle, to: *mut c_uint) => put(to, instance_of(gpu)?.2.id);
    nvmlDeviceGetComputeInstanceId (gpu: Handle, to: *mut c_uint) => { instance_of(gpu)?; put(to, 0) };
    nvmlDeviceGetComputeRunningProcesses_v3 (gpu: Handle, count: *mut c_uint, to: *mut ProcessInfo) => {
        let device = device(gpu)?;
        let clients = device.mig.map(|mig| mig.clients).unwrap_or_default();
        if clients.is_empty() {
            let there = device.readings.processes.ok_or(Status::NotSupported)?;
            // Only their number is known.
            put(count, there)?;
            return if there == 0 { Ok(()) } else { Err(Status::InsufficientSize) };
        }
        let process = |client: &Client| ProcessInfo {
            pid: client.pid,
            memory: 0,
            gpu_instance: client.instance.unwrap_or(NO_INSTANCE),
            compute_instance: client.instance.map_or(NO_INSTANCE, |_| 0),
        };
        if to.is_null() {
            put(count, number(clients.len())?)?;
            return Err(Status::InsufficientSize);
        }
        fill(clients.iter().map(process).collect(), to, count)
    };
}

fn with_mig(gpu: Handle) -> Result<Device, Status> {
    device(gpu).and_then(|device| if device.mig.is_some() { Ok(device) } else { Err(Status::NotSupported) })
}

/// A MIG device's handle is that of its compute instance.
fn is_mig_device(handle: Handle) -> bool {
    handle.addr() & COMPUTE != 0
}

/// A MIG device's name; nothing for a GPU's handle.
pub(super) fn name(handle: Handle) -> Option<Result<String, Status>> {
    is_mig_device(handle).then(|| {
        let (_, device, instance) = instance_of(handle)?;
        Ok(format!("{} {}", device.name, Profile::numbered(instance.profile)?.name(device.memory_mib)))
    })
}

/// A MIG device's UUID; nothing for a GPU's handle.
pub(super) fn uuid(handle: Handle) -> Option<Result<String, Status>> {
    is_mig_device(handle).then(|| {
        let (_, device, instance) = instance_of(handle)?;
        Ok(format!("MIG-{}-{}", device.uuid.trim_start_matches("GPU-"), instance.id))
    })
}

/// The instance that this handle, or that of its compute instance, means, with its GPU.
fn instance_of(handle: Handle) -> Result<(Handle, Device, Instance), Status> {
    let handle = handle.addr() & !COMPUTE;
    let gpu = ptr::without_provenance_mut(handle & ((1 << NUMBER) - 1));
    let device = with_mig(gpu)?;
    let instances = lib().division(&device)?.instances;
    let found = instances.into_iter().find(|instance| instance.id as usize == handle >> NUMBER);
    Ok((gpu, device, found.ok_or(Status::InvalidArgument)?))
}

/// Writes as many as there are, where `count` says that there is room.
///
/// # Safety
/// `count` is null or valid, and `to` is null or valid for writing as many as `count` says.
unsafe fn fill<T>(values: Vec<T>, to: *mut T, count: *mut c_uint) -> Result<(), Status> {
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
unsafe fn put_all<T>(values: Vec<T>, to: *mut T, count: *mut c_uint) -> Result<(), Status> {
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
