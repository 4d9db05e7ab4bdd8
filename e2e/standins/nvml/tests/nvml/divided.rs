//! MIG devices, queried as by NVIDIA's device plugin and gpu-feature-discovery.
#![allow(unsafe_code)] // calling C through nvml-wrapper's bindings is this module's subject

use std::{ffi::CString, mem::zeroed, ptr};

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstanceInfo_t, nvmlComputeInstanceProfileInfo_t, nvmlDevice_t, nvmlDeviceAttributes_t,
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfoV_t, nvmlGpuInstanceInfo_t, nvmlGpuInstanceProfileInfo_t,
};

use super::driver_root::{DriverRoot, init, install, serve};

/// The state of an A100 with a MIG device of three slices and one of one slice.
const DIVIDED: &str = r#"{"0000:00:00.0":{"enabled":true,"pending":true,"instances":[
    {"id":1,"profile":9,"start":0,"compute":true},{"id":2,"profile":19,"start":4,"compute":true}]}}"#;

/// Calls a function of the loaded library, and asserts that it succeeds.
macro_rules! call {
    ($nvml:expr, $name:ident ($($arg:expr),*)) => {{
        let function = $nvml.lib().$name.as_ref().unwrap();
        // SAFETY: handles are the library's own, and pointers are to values that outlive the call.
        assert_eq!(unsafe { function($($arg),*) }, 0, stringify!($name));
    }};
}

fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: the handle is used only while the device exists.
    unsafe { device.handle() }
}

fn zeros<T>() -> T {
    // SAFETY: used only for structures of numbers and pointers.
    unsafe { zeroed() }
}

/// Returns the ids of a MIG device's GPU profile and compute profile, queried as by go-nvlib.
fn profile(nvml: &Nvml, mig: &Device<'_>) -> (u32, u32) {
    let (mut gi, mut ci) = (0, 0);
    call!(nvml, nvmlDeviceGetGpuInstanceId(handle(mig), &raw mut gi));
    call!(nvml, nvmlDeviceGetComputeInstanceId(handle(mig), &raw mut ci));
    let parent = mig.mig_parent_device().unwrap();
    let (mut instance, mut compute) = (ptr::null_mut(), ptr::null_mut());
    call!(nvml, nvmlDeviceGetGpuInstanceById(handle(&parent), gi, &raw mut instance));
    call!(nvml, nvmlGpuInstanceGetComputeInstanceById(instance, ci, &raw mut compute));
    let (mut of_instance, mut of_compute): (nvmlGpuInstanceInfo_t, nvmlComputeInstanceInfo_t) = (zeros(), zeros());
    call!(nvml, nvmlGpuInstanceGetInfo(instance, &raw mut of_instance));
    call!(nvml, nvmlComputeInstanceGetInfo_v2(compute, &raw mut of_compute));
    assert_eq!(of_compute.gpuInstance, instance);
    let mut offered: nvmlComputeInstanceProfileInfo_t = zeros();
    call!(nvml, nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, of_compute.profileId, 0, &raw mut offered));
    assert_eq!(offered.id, of_compute.profileId);
    (of_instance.profileId, of_compute.profileId)
}

#[test]
fn a_mig_device_reports_its_profile_memory_and_gpu() {
    let root = DriverRoot::with_gpus(&[]);
    let nvml = init(&install(&root)).unwrap();
    serve(&root, &[(0x20b2, 1)], r#","mig":{}"#);
    root.write("etc/standin/mig.json", DIVIDED);
    let gpu = nvml.device_by_index(0).unwrap();
    let devices: Vec<Device<'_>> =
        (0..gpu.mig_device_count().unwrap()).flat_map(|i| gpu.mig_device_by_index(i)).collect();
    assert_eq!(devices.len(), 2);
    for (index, mig) in devices.iter().enumerate() {
        assert_eq!(mig.index().unwrap() as usize, index);
        assert_eq!(mig.mig_parent_device().unwrap().uuid().unwrap(), "GPU-0-a");
        // The library finds it by its UUID, too.
        let uuid = mig.uuid().unwrap();
        let text = CString::new(uuid.clone()).unwrap();
        let mut found = ptr::null_mut();
        call!(nvml, nvmlDeviceGetHandleByUUID(text.as_ptr(), &raw mut found));
        assert_eq!(found, handle(mig), "{uuid}");
    }
    assert_eq!(devices.iter().map(|mig| profile(&nvml, mig)).collect::<Vec<_>>(), [(9, 2), (19, 0)]);
    assert_eq!(devices[0].memory_info().unwrap().total, 40_448 << 20);

    let mut attributes: nvmlDeviceAttributes_t = zeros();
    call!(nvml, nvmlDeviceGetAttributes_v2(handle(&devices[0]), &raw mut attributes));
    let nvmlDeviceAttributes_t {
        multiprocessorCount, sharedCopyEngineCount, gpuInstanceSliceCount, memorySizeMB, ..
    } = attributes;
    assert_eq!((multiprocessorCount, sharedCopyEngineCount, gpuInstanceSliceCount, memorySizeMB), (42, 3, 3, 40_448));
    assert!(gpu.attributes().is_err(), "the GPU itself is not a MIG device");
}

#[test]
fn every_version_of_a_structure_is_filled_to_its_end() {
    let root = DriverRoot::with_gpus(&[]);
    let nvml = init(&install(&root)).unwrap();
    serve(&root, &[(0x2330, 1)], r#","readings":{"fabric":{"state":3,"health":1,"clique":7,"cluster":"01020304"}}"#);
    let gpu = nvml.device_by_index(0).unwrap();

    let mut offered: nvmlGpuInstanceProfileInfo_t = zeros();
    call!(nvml, nvmlDeviceGetGpuInstanceProfileInfo(handle(&gpu), 2, &raw mut offered));
    assert_eq!((offered.id, offered.sliceCount, offered.instanceCount), (9, 3, 2));
    assert_eq!((offered.multiprocessorCount, offered.memorySizeMB), (60, 40_448));

    let mut fabric: nvmlGpuFabricInfo_t = zeros();
    call!(nvml, nvmlDeviceGetGpuFabricInfo(handle(&gpu), &raw mut fabric));
    assert_eq!((fabric.state, fabric.cliqueId, fabric.clusterUuid[..4].to_vec()), (3, 7, vec![1, 2, 3, 4]));
    for (version, health) in [(0x0200_0024, 0), (0x0300_0028, 1)] {
        let mut fabric = nvmlGpuFabricInfoV_t { version, ..zeros() };
        call!(nvml, nvmlDeviceGetGpuFabricInfoV(handle(&gpu), &raw mut fabric));
        assert_eq!((fabric.state, fabric.cliqueId, fabric.healthSummary), (3, 7, health));
    }
}
