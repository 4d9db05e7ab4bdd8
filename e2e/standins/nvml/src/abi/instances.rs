//! NVML's calls for the instances that MIG makes of a GPU, and for the compute instance that each of them has.
#![allow(unsafe_code)] // exporting C functions and writing through their pointers is this module's subject

use std::{
    ffi::{c_uint, c_ulonglong},
    ptr,
};

use super::{
    c::{Handle, answer, expect_version, export, lib, padded, put, put_handle},
    lists::{fill, put_all},
    mig::{instance_of, with_mig},
};
use crate::{
    handle,
    machine::Device,
    mig::{Engines, Instance, Profile},
    status::Status,
};

/// Version 1: id, peer-to-peer support, slices, maximum number of instances, multiprocessors, and engines for copies,
/// decoding, encoding, JPEG and optical flow.
#[repr(C)]
struct GpuInstanceProfile {
    numbers: [c_uint; 10],
    memory_mib: c_ulonglong,
}

#[repr(C)]
struct GpuInstanceProfileV2 {
    version: c_uint,
    numbers: [c_uint; 10],
    memory_mib: c_ulonglong,
    name: [u8; 96],
}

/// The same without peer-to-peer support, which is a capability in this version.
#[repr(C)]
struct GpuInstanceProfileV3 {
    version: c_uint,
    id: c_uint,
    numbers: [c_uint; 8],
    memory_mib: c_ulonglong,
    name: [u8; 96],
    capabilities: c_uint,
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

/// Version 1: id, slices, maximum number of instances, multiprocessors, and the engines as above.
type ComputeInstanceProfile = [c_uint; 9];

#[repr(C)]
struct ComputeInstanceProfileV2 {
    version: c_uint,
    first: ComputeInstanceProfile,
    name: [u8; 96],
}

#[repr(C)]
struct ComputeInstanceProfileV3 {
    second: ComputeInstanceProfileV2,
    capabilities: c_uint,
}

#[repr(C)]
struct ComputeInstanceInfo {
    device: Handle,
    gpu_instance: Handle,
    id: c_uint,
    profile: c_uint,
    placement: Placement,
}

const _: () = assert!(size_of::<GpuInstanceProfile>() == 48);
const _: () = assert!(size_of::<GpuInstanceProfileV2>() == 152);
const _: () = assert!(size_of::<GpuInstanceProfileV3>() == 152);
const _: () = assert!(size_of::<GpuInstanceInfo>() == 24);
const _: () = assert!(size_of::<ComputeInstanceProfile>() == 36);
const _: () = assert!(size_of::<ComputeInstanceProfileV2>() == 136);
const _: () = assert!(size_of::<ComputeInstanceProfileV3>() == 140);
const _: () = assert!(size_of::<ComputeInstanceInfo>() == 32);

/// The first words of correctly prepared structures: version and size.
const GPU_PROFILE_V2: c_uint = 0x0200_0098;
const GPU_PROFILE_V3: c_uint = 0x0300_0098;
const COMPUTE_PROFILE_V2: c_uint = 0x0200_0088;
const COMPUTE_PROFILE_V3: c_uint = 0x0300_008c;

/// The compute slices of each compute profile, by NVML's number of the profile.
const COMPUTE_SLICES: [u32; 7] = [1, 2, 3, 4, 7, 8, 6];

export! {
    nvmlDeviceGetGpuInstanceProfileInfo (gpu: Handle, index: c_uint, to: *mut GpuInstanceProfile) => {
        put(to, gpu_profile(&with_mig(gpu)?, Profile::at(index)?))
    };
    nvmlDeviceGetGpuInstanceProfileInfoV (gpu: Handle, index: c_uint, to: *mut GpuInstanceProfileV3) => {
        put_gpu_profile(&with_mig(gpu)?, Profile::at(index)?, to)
    };
    nvmlDeviceGetGpuInstanceProfileInfoByIdV (gpu: Handle, id: c_uint, to: *mut GpuInstanceProfileV3) => {
        put_gpu_profile(&with_mig(gpu)?, Profile::numbered(id)?, to)
    };
    nvmlDeviceGetGpuInstancePossiblePlacements | nvmlDeviceGetGpuInstancePossiblePlacements_v2
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
        put_handle(to, handle::instance(gpu.addr(), id))
    };
    nvmlDeviceGetGpuInstances (gpu: Handle, profile: c_uint, to: *mut Handle, count: *mut c_uint) => {
        let division = lib().division(&with_mig(gpu)?)?;
        if !division.enabled {
            return Err(Status::NotSupported);
        }
        let handle = |instance: &Instance| ptr::without_provenance_mut(handle::instance(gpu.addr(), instance.id));
        put_all(division.instances.iter().filter(|instance| instance.profile == profile).map(handle).collect(), to, count)
    };
    nvmlDeviceGetGpuInstanceById (gpu: Handle, id: c_uint, to: *mut Handle) => {
        let instances = lib().division(&with_mig(gpu)?)?.instances;
        let instance = instances.iter().find(|instance| instance.id == id).ok_or(Status::NotFound)?;
        put_handle(to, handle::instance(gpu.addr(), instance.id))
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
        let (_, device, instance) = instance_of(instance)?;
        put(to, compute_profile(&device, &instance, index)?)
    };
    nvmlGpuInstanceGetComputeInstanceProfileInfoV
        (instance: Handle, index: c_uint, _engines: c_uint, to: *mut ComputeInstanceProfileV3) => {
        let (_, device, instance) = instance_of(instance)?;
        let first = compute_profile(&device, &instance, index)?;
        let version = &raw const (*to).second.version;
        expect_version(version, &[COMPUTE_PROFILE_V2, COMPUTE_PROFILE_V3])?;
        let version = version.read();
        let name = padded(&Profile::numbered(instance.profile)?.name(device.memory_mib));
        put(&raw mut (*to).second, ComputeInstanceProfileV2 { version, first, name })?;
        // Beyond the end of version 2.
        if version == COMPUTE_PROFILE_V3 {
            (&raw mut (*to).capabilities).write(0);
        }
        Ok(())
    };
    nvmlGpuInstanceGetComputeInstances (instance: Handle, _profile: c_uint, to: *mut Handle, count: *mut c_uint) => {
        let handle = ptr::without_provenance_mut(handle::compute(instance.addr()));
        let (_, _, instance) = instance_of(instance)?;
        put_all(instance.compute.then_some(handle).into_iter().collect(), to, count)
    };
    nvmlGpuInstanceGetComputeInstanceById (instance: Handle, id: c_uint, to: *mut Handle) => {
        let handle = handle::compute(instance.addr());
        let (_, _, instance) = instance_of(instance)?;
        if id == 0 && instance.compute { put_handle(to, handle) } else { Err(Status::NotFound) }
    };
    nvmlGpuInstanceCreateComputeInstance (instance: Handle, _profile: c_uint, to: *mut Handle) => {
        let handle = handle::compute(instance.addr());
        let (_, device, instance) = instance_of(instance)?;
        lib().set_compute(&device, instance.id, true)?;
        put_handle(to, handle)
    };
    nvmlComputeInstanceGetInfo | nvmlComputeInstanceGetInfo_v2 (compute: Handle, to: *mut ComputeInstanceInfo) => {
        let (device, _, instance) = instance_of(compute)?;
        let slices = Profile::numbered(instance.profile)?.slices;
        put(to, ComputeInstanceInfo {
            device,
            gpu_instance: ptr::without_provenance_mut(handle::instance(device.addr(), instance.id)),
            id: 0,
            profile: whole(slices)?,
            placement: Placement { start: 0, size: slices },
        })
    };
    nvmlComputeInstanceDestroy (compute: Handle) => {
        let (_, device, instance) = instance_of(compute)?;
        lib().set_compute(&device, instance.id, false)
    };
}

fn gpu_profile(device: &Device, profile: Profile) -> GpuInstanceProfile {
    let Engines { multiprocessors, copy, decoders, jpeg, ofa } = profile.engines(&device.model());
    let Profile { id, slices, most, .. } = profile;
    GpuInstanceProfile {
        numbers: [id, 0, slices, most, multiprocessors, copy, decoders, 0, jpeg, ofa],
        memory_mib: profile.memory_mib(device.memory_mib),
    }
}

/// Writes the structure in the version that its first word, set by the caller, requests.
///
/// # Safety
/// `to` is null or valid for reading its first word and for writing a structure of that version.
unsafe fn put_gpu_profile(device: &Device, profile: Profile, to: *mut GpuInstanceProfileV3) -> Result<(), Status> {
    let version = to.cast::<c_uint>();
    // SAFETY: the version is the structure's first word.
    unsafe { expect_version(version, &[GPU_PROFILE_V2, GPU_PROFILE_V3])? };
    let GpuInstanceProfile { numbers, memory_mib } = gpu_profile(device, profile);
    let name = padded(&profile.name(device.memory_mib));
    // SAFETY: not null; the caller has prepared a structure of the requested version.
    unsafe {
        let version = version.read();
        if version == GPU_PROFILE_V2 {
            return put(to.cast(), GpuInstanceProfileV2 { version, numbers, memory_mib, name });
        }
        let [id, _, numbers @ ..] = numbers;
        put(to, GpuInstanceProfileV3 { version, id, numbers, memory_mib, name, capabilities: 0 })
    }
}

/// Returns the compute profile at this index of NVML's list. Only the profile that uses the whole instance exists.
fn compute_profile(device: &Device, instance: &Instance, index: c_uint) -> Result<ComputeInstanceProfile, Status> {
    let profile = Profile::numbered(instance.profile)?;
    if whole(profile.slices)? != index {
        return Err(Status::NotSupported);
    }
    let Engines { multiprocessors, copy, decoders, jpeg, ofa } = profile.engines(&device.model());
    Ok([index, profile.slices, 1, multiprocessors, copy, decoders, 0, jpeg, ofa])
}

/// Returns NVML's number of the compute profile with this number of slices.
fn whole(slices: u32) -> Result<c_uint, Status> {
    let index = COMPUTE_SLICES.iter().position(|those| *those == slices).ok_or(Status::NotSupported)?;
    super::number(index)
}
