//! NVML's calls for how GPUs are connected.
#![allow(unsafe_code)] // exporting C functions and writing through their pointers is this module's subject

use std::{
    ffi::{c_int, c_uchar, c_uint},
    sync::Arc,
};

use super::c::{Handle, PciInfo, answer, device, expect_version, export, lib, put};
use crate::{
    library::Library,
    machine::{Device, Machine},
    readings::Fabric,
    status::Status,
    topology::{End, Level, NvLink, Way},
};

/// Version 1, which has no version field.
#[repr(C)]
struct FabricInfo {
    cluster: [c_uchar; 16],
    status: c_uint,
    clique: c_uint,
    state: c_uchar,
}

#[repr(C)]
struct FabricInfoV2 {
    version: c_uint,
    cluster: [c_uchar; 16],
    status: c_uint,
    clique: c_uint,
    state: c_uchar,
    mask: c_uint,
}

#[repr(C)]
struct FabricInfoV3 {
    first: FabricInfoV2,
    health: c_uchar,
}

const _: () = assert!(size_of::<FabricInfo>() == 28);
const _: () = assert!(size_of::<FabricInfoV2>() == 36);
const _: () = assert!(size_of::<FabricInfoV3>() == 40);

const FABRIC_V2: c_uint = 0x0200_0024;
const FABRIC_V3: c_uint = 0x0300_0028;

/// NVML's numbers of the device types at the other end of an NVLink.
const TO_GPU: c_uint = 0;
const TO_SWITCH: c_uint = 2;

export! {
    nvmlDeviceGetTopologyCommonAncestor (one: Handle, other: Handle, to: *mut c_uint) => {
        let (machine, one, other) = two(one, other)?;
        put(to, machine.common_ancestor(one, other) as c_uint)
    };
    nvmlDeviceOnSameBoard (one: Handle, other: Handle, to: *mut c_int) => {
        let (machine, one, other) = two(one, other)?;
        put(to, (machine.common_ancestor(one, other) == Level::Internal).into())
    };
    nvmlDeviceGetP2PStatus (one: Handle, other: Handle, way: c_uint, to: *mut c_uint) => {
        let (machine, one, other) = two(one, other)?;
        let way = match way {
            0 | 1 | 4 => Way::Any,
            2 => Way::NvLink,
            3 => Way::Atomics,
            _ => return Err(Status::InvalidArgument),
        };
        put(to, machine.peer(one, other, way) as c_uint)
    };

    nvmlDeviceGetNvLinkState (gpu: Handle, link: c_uint, to: *mut c_uint) => put(to, nvlink(gpu, link)?.active.into());
    nvmlDeviceGetNvLinkRemotePciInfo | nvmlDeviceGetNvLinkRemotePciInfo_v2
        (gpu: Handle, link: c_uint, to: *mut PciInfo) => {
        match nvlink(gpu, link)? {
            NvLink { active: true, end: End::Gpu(address, id) | End::Switch(address, id) } => {
                put(to, PciInfo::of(address, id))
            }
            _ => Err(Status::NotSupported),
        }
    };
    nvmlDeviceGetNvLinkRemoteDeviceType (gpu: Handle, link: c_uint, to: *mut c_uint) => {
        match nvlink(gpu, link)? {
            NvLink { active: false, .. } => Err(Status::NotSupported),
            NvLink { end: End::Gpu(..), .. } => put(to, TO_GPU),
            NvLink { end: End::Switch(..) | End::Hidden, .. } => put(to, TO_SWITCH),
        }
    };

    nvmlDeviceGetGpuFabricInfo (gpu: Handle, to: *mut FabricInfo) => {
        let Fabric { state, status, cluster, clique, .. } = fabric(&device(gpu)?)?;
        put(to, FabricInfo { cluster: bytes(&cluster), status, clique, state })
    };
    nvmlDeviceGetGpuFabricInfoV (gpu: Handle, to: *mut FabricInfoV3) => {
        let Fabric { state, status, health, cluster, clique } = fabric(&device(gpu)?)?;
        let known: &[c_uint] = if health.is_some() { &[FABRIC_V2, FABRIC_V3] } else { &[FABRIC_V2] };
        let version = &raw const (*to).first.version;
        expect_version(version, known)?;
        let version = version.read();
        put(&raw mut (*to).first, FabricInfoV2 { version, cluster: bytes(&cluster), status, clique, state, mask: 0 })?;
        // Beyond the end of version 2.
        if let Some(health) = health.filter(|_| version == FABRIC_V3) {
            (&raw mut (*to).health).write(health);
        }
        Ok(())
    };
}

/// Returns the GPUs, and the indices of two of them.
fn two(one: Handle, other: Handle) -> Result<(Arc<Machine>, usize, usize), Status> {
    let (machine, one) = lib().place(one.addr())?;
    let other = Library::place_in(lib(), &machine, other.addr())?;
    Ok((machine, one, other))
}

fn nvlink(gpu: Handle, link: c_uint) -> Result<NvLink, Status> {
    let (machine, place) = lib().place(gpu.addr())?;
    let links = machine.nvlinks(place);
    if links.is_empty() {
        return Err(Status::NotSupported);
    }
    links.get(link as usize).copied().ok_or(Status::InvalidArgument)
}

/// Returns the GPU's membership in a fabric. GPUs before Hopper support no fabric; later ones support it, but need not
/// be in one.
fn fabric(device: &Device) -> Result<Fabric, Status> {
    let (major, _) = device.capability().ok_or(Status::Unknown)?;
    match device.readings.fabric.clone() {
        Some(fabric) => Ok(fabric),
        None if device.model().fabric => Ok(Fabric { state: 3, health: Some(1), ..Fabric::default() }),
        None if major == 9 || major == 10 => Ok(Fabric { health: Some(0), ..Fabric::default() }),
        None => Err(Status::NotSupported),
    }
}

/// Returns the bytes that hexadecimal digits represent; missing digits are zeros.
fn bytes(digits: &str) -> [c_uchar; 16] {
    let digits: Vec<u32> = digits.chars().filter_map(|digit| digit.to_digit(16)).collect();
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair.iter().fold(0, |all, digit| all << 4 | c_uchar::try_from(*digit).unwrap_or_default());
    }
    bytes
}
