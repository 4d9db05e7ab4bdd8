//! Reads and changes MIG instances through NVML calls that nvml-wrapper does not wrap.
//!
//! Their behaviour on real hardware is taken from NVML's documentation and unverified; the tests use a stand-in.
#![allow(unsafe_code, reason = "calling C through nvml-wrapper's bindings is this module's subject")]

use std::{ffi::CStr, mem::zeroed, ptr};

use nvml_wrapper::{
    Device,
    error::{NvmlError, nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, NVML_COMPUTE_INSTANCE_PROFILE_COUNT, NVML_GPU_INSTANCE_PROFILE_COUNT,
    NvmlLib, nvmlComputeInstance_t, nvmlComputeInstanceProfileInfo_t, nvmlDevice_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlProcessInfo_t,
};

use super::raw::{handle, version};
use crate::nvml::protocol::{GpuClient, Instance, MigGpu, MigProfile, MigState, MigStep, Placement};

/// More than a GPU has slices, which bounds every list below.
const MAX_INSTANCES: u32 = 64;
/// Compute slices, indexed by NVML's number of the compute profile that takes that many.
const COMPUTE_SLICES: [u32; 7] = [1, 2, 3, 4, 7, 8, 6];
/// The prefix of the profile name of an instance without a usable compute instance, so that it matches no layout.
const UNUSABLE: &str = "unusable ";

#[derive(Clone, Debug)]
struct KnownProfile {
    id: u32,
    slices: u32,
    most: u32,
    supported: MigProfile,
}

/// Returns the profiles of a GPU, whether MIG is enabled or not; empty without MIG support, or if the driver lacks the
/// calls (before R510).
fn profiles(device: &Device<'_>) -> Vec<KnownProfile> {
    (0..NVML_GPU_INSTANCE_PROFILE_COUNT).filter_map(|index| profile(device, index).ok()).collect()
}

fn profile(device: &Device<'_>, index: u32) -> Result<KnownProfile, NvmlError> {
    let lib = device.nvml().lib();
    let call = nvml_sym(lib.nvmlDeviceGetGpuInstanceProfileInfoV.as_ref())?;
    // SAFETY: the structure consists of numbers, for which zeros are valid.
    let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { zeroed() };
    info.version = version::<nvmlGpuInstanceProfileInfo_v2_t>(2);
    // SAFETY: the handle is the library's own, and the structure outlives the call and states its size.
    nvml_try(unsafe { call(handle(device), index, &raw mut info) })?;
    // SAFETY: the library ends its texts with a NUL, and the structure was zeroed before.
    let name = unsafe { CStr::from_ptr(info.name.as_ptr()) }.to_string_lossy();
    let name = name.trim_start_matches("MIG ").to_owned();
    let supported = MigProfile { name, placements: placements(device, info.id)? };
    Ok(KnownProfile {
        id: info.id,
        slices: info.sliceCount,
        most: info.instanceCount.clamp(1, MAX_INSTANCES),
        supported,
    })
}

fn placements(device: &Device<'_>, profile: u32) -> Result<Vec<Placement>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstancePossiblePlacements_v2.as_ref())?;
    let mut count = 0;
    // SAFETY: without a buffer, the library writes only the count.
    nvml_try(unsafe { call(handle(device), profile, ptr::null_mut(), &raw mut count) })?;
    let mut places = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; count as usize];
    // SAFETY: the count passed is the size of the buffer.
    nvml_try(unsafe { call(handle(device), profile, places.as_mut_ptr(), &raw mut count) })?;
    places.truncate(count as usize);
    Ok(places.into_iter().map(|place| Placement { start: place.start, size: place.size }).collect())
}

/// Returns a GPU's MIG state; `None` if it does not support MIG or the driver lacks a call.
pub fn read(device: &Device<'_>) -> Option<MigGpu> {
    let profiles = Some(profiles(device)).filter(|profiles| !profiles.is_empty())?;
    let (enabled, pending) = mode(device).ok()?;
    let clients = clients(device);
    let of = |instance: Option<u32>| {
        let held = clients.iter().filter(move |(by, _)| *by == instance);
        held.map(|(_, client)| client.clone()).collect::<Vec<_>>()
    };
    let mut instances = Vec::new();
    if enabled {
        for profile in &profiles {
            for found in instances_of(device, profile).ok()? {
                let instance = read_instance(device, profile, found).ok()?;
                instances.push(Instance { clients: of(Some(instance.id)), ..instance });
            }
        }
    }
    let supported = profiles.iter().map(|profile| profile.supported.clone()).collect();
    Some(MigGpu { state: MigState { enabled, pending, instances, clients: of(None) }, profiles: supported })
}

fn mode(device: &Device<'_>) -> Result<(bool, bool), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMigMode.as_ref())?;
    let (mut current, mut pending) = (0, 0);
    // SAFETY: the handle is the library's own, and the pointers are to values that outlive the call.
    nvml_try(unsafe { call(handle(device), &raw mut current, &raw mut pending) })?;
    Ok((current != 0, pending != 0))
}

/// Returns the processes that use the GPU, with the instance that they use, as far as the library reports them; only
/// the host knows their names.
fn clients(device: &Device<'_>) -> Vec<(Option<u32>, GpuClient)> {
    let lib = device.nvml().lib();
    let calls =
        [lib.nvmlDeviceGetComputeRunningProcesses_v3.as_ref(), lib.nvmlDeviceGetGraphicsRunningProcesses_v3.as_ref()];
    let mut clients = Vec::new();
    for call in calls.into_iter().flatten() {
        let empty = nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        let mut found = vec![empty; 256];
        let mut count = 256;
        // SAFETY: the count passed is the size of the buffer.
        if nvml_try(unsafe { call(handle(device), &raw mut count, found.as_mut_ptr()) }).is_ok() {
            for process in found.into_iter().take(count as usize) {
                let instance = Some(process.gpuInstanceId).filter(|id| *id != u32::MAX);
                clients.push((instance, GpuClient { pid: process.pid, name: String::new() }));
            }
        }
    }
    clients.sort();
    clients.dedup();
    clients
}

fn instances_of(device: &Device<'_>, profile: &KnownProfile) -> Result<Vec<nvmlGpuInstance_t>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstances.as_ref())?;
    let mut found = vec![ptr::null_mut(); MAX_INSTANCES as usize];
    let mut count = 0;
    // SAFETY: the library writes at most the profile's maximum number of instances, for which there is room.
    nvml_try(unsafe { call(handle(device), profile.id, found.as_mut_ptr(), &raw mut count) })?;
    found.truncate(count.min(profile.most) as usize);
    Ok(found)
}

fn read_instance(
    device: &Device<'_>,
    profile: &KnownProfile,
    instance: nvmlGpuInstance_t,
) -> Result<Instance, NvmlError> {
    let lib = device.nvml().lib();
    let info = info(lib, instance)?;
    let whole = whole(lib, instance, profile.slices)?;
    let mark = if computes(lib, instance, whole)?.len() == 1 { "" } else { UNUSABLE };
    Ok(Instance {
        id: info.id,
        profile: format!("{mark}{}", profile.supported.name),
        placement: Placement { start: info.placement.start, size: info.placement.size },
        clients: Vec::new(),
    })
}

fn info(lib: &NvmlLib, instance: nvmlGpuInstance_t) -> Result<nvmlGpuInstanceInfo_t, NvmlError> {
    let call = nvml_sym(lib.nvmlGpuInstanceGetInfo.as_ref())?;
    // SAFETY: the structure consists of numbers and a pointer, for which zeros are valid.
    let mut info: nvmlGpuInstanceInfo_t = unsafe { zeroed() };
    // SAFETY: the instance's handle was just returned by the library, and the structure outlives the call.
    nvml_try(unsafe { call(instance, &raw mut info) })?;
    Ok(info)
}

/// Returns the id of the compute profile that takes all of an instance.
fn whole(lib: &NvmlLib, instance: nvmlGpuInstance_t, slices: u32) -> Result<u32, NvmlError> {
    let index = COMPUTE_SLICES.iter().position(|those| *those == slices).ok_or(NvmlError::NotSupported)?;
    compute_profile(lib, instance, u32::try_from(index).unwrap_or_default())
}

fn compute_profile(lib: &NvmlLib, instance: nvmlGpuInstance_t, index: u32) -> Result<u32, NvmlError> {
    let call = nvml_sym(lib.nvmlGpuInstanceGetComputeInstanceProfileInfo.as_ref())?;
    // SAFETY: the structure consists of numbers, for which zeros are valid.
    let mut info: nvmlComputeInstanceProfileInfo_t = unsafe { zeroed() };
    // SAFETY: as for `info`.
    nvml_try(unsafe { call(instance, index, NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, &raw mut info) })?;
    Ok(info.id)
}

fn computes(lib: &NvmlLib, instance: nvmlGpuInstance_t, profile: u32) -> Result<Vec<nvmlComputeInstance_t>, NvmlError> {
    let call = nvml_sym(lib.nvmlGpuInstanceGetComputeInstances.as_ref())?;
    let mut found = vec![ptr::null_mut(); MAX_INSTANCES as usize];
    let mut count = 0;
    // SAFETY: an instance has at most as many compute instances as slices, for which there is room.
    nvml_try(unsafe { call(instance, profile, found.as_mut_ptr(), &raw mut count) })?;
    found.truncate(count.min(MAX_INSTANCES) as usize);
    Ok(found)
}

pub fn apply(device: &Device<'_>, step: &MigStep) -> Result<(), NvmlError> {
    match step {
        MigStep::SetMode(on) => set_mode(device, *on),
        MigStep::Destroy(id) => destroy(device, *id),
        MigStep::Create { profile, placement } => create(device, profile, *placement),
    }
}

fn set_mode(device: &Device<'_>, on: bool) -> Result<(), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceSetMigMode.as_ref())?;
    let mut activation = 0;
    // SAFETY: the handle is the library's own, and the pointer is to a value that outlives the call.
    nvml_try(unsafe { call(handle(device), on.into(), &raw mut activation) })?;
    match nvml_try(activation) {
        // The next reading shows that the mode is pending.
        Err(NvmlError::ResetRequired) => Ok(()),
        other => other,
    }
}

fn destroy(device: &Device<'_>, id: u32) -> Result<(), NvmlError> {
    let lib = device.nvml().lib();
    let (end, end_compute) =
        (nvml_sym(lib.nvmlGpuInstanceDestroy.as_ref())?, nvml_sym(lib.nvmlComputeInstanceDestroy.as_ref())?);
    for profile in profiles(device) {
        for instance in instances_of(device, &profile)? {
            if info(lib, instance)?.id != id {
                continue;
            }
            for index in 0..NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
                let Ok(profile) = compute_profile(lib, instance, index) else { continue };
                for compute in computes(lib, instance, profile)? {
                    // SAFETY: the handle was just returned by the library and is not used again.
                    nvml_try(unsafe { end_compute(compute) })?;
                }
            }
            // SAFETY: as above.
            return nvml_try(unsafe { end(instance) });
        }
    }
    Err(NvmlError::NotFound)
}

fn create(device: &Device<'_>, profile: &str, placement: Placement) -> Result<(), NvmlError> {
    let lib = device.nvml().lib();
    let (make, make_compute) = (
        nvml_sym(lib.nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?,
        nvml_sym(lib.nvmlGpuInstanceCreateComputeInstance.as_ref())?,
    );
    let known = profiles(device).into_iter().find(|known| known.supported.name == profile);
    let known = known.ok_or(NvmlError::NotFound)?;
    let place = nvmlGpuInstancePlacement_t { start: placement.start, size: placement.size };
    let device: nvmlDevice_t = handle(device);
    let (mut instance, mut compute) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the handle is the library's own, and the pointers are to values that outlive the call.
    nvml_try(unsafe { make(device, known.id, &raw const place, &raw mut instance) })?;
    let whole = whole(lib, instance, known.slices)?;
    // SAFETY: the instance was just created.
    nvml_try(unsafe { make_compute(instance, whole, &raw mut compute) })
}
