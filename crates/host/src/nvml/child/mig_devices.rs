//! A GPU's MIG devices: their numbers by profile, and their ids.

use gpu_operator_crd::report::{MigAttributes, MigDevices};
use nvml_wrapper::{Device, error::NvmlError, struct_wrappers::device::DeviceAttributes};

use super::raw;
use crate::nvml::protocol::MigId;

const ENABLED: u32 = 1;

/// `None` if NVML fails to report it.
pub fn is_capable(gpu: &Device<'_>) -> Option<bool> {
    match gpu.mig_mode() {
        Ok(_) => Some(true),
        // A driver without MIG support lacks the call.
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => Some(false),
        Err(_) => None,
    }
}

/// `None` if MIG is disabled or the driver reports none.
pub fn devices(gpu: &Device<'_>) -> Option<Vec<MigDevices>> {
    Some(counted(found(gpu)?.map(|device| (device.name(), move || device.attributes().ok()))))
}

/// Returns the ids of the MIG devices of a GPU. Devices whose UUID cannot be read are skipped.
pub fn ids(gpu: &Device<'_>) -> Vec<MigId> {
    let id = |device: Device<'_>| {
        let name = device.name().ok();
        Some(MigId {
            uuid: device.uuid().ok()?,
            gpu_instance: raw::gpu_instance_id(&device).ok(),
            profile: name.as_deref().and_then(profile).unwrap_or_default(),
        })
    };
    found(gpu).into_iter().flatten().filter_map(id).collect()
}

fn found<'a>(gpu: &'a Device<'_>) -> Option<impl Iterator<Item = Device<'a>>> {
    if gpu.mig_mode().ok()?.current != ENABLED {
        return None;
    }
    let places = gpu.mig_device_count().ok()?;
    // Indices without a device return an error.
    Some((0..places).filter_map(|place| gpu.mig_device_by_index(place).ok()))
}

fn profile(name: &str) -> Option<String> {
    Some(name.rsplit_once("MIG ")?.1.trim().to_owned())
}

/// Counts devices by the profile in their names, with the attributes of the first of each profile; all of a profile are
/// alike. Devices whose name cannot be read are skipped.
fn counted<A: FnOnce() -> Option<DeviceAttributes>>(
    found: impl Iterator<Item = (Result<String, NvmlError>, A)>,
) -> Vec<MigDevices> {
    let mut counted: Vec<MigDevices> = Vec::new();
    for (name, attributes) in found {
        let Some(profile) = name.ok().as_deref().and_then(profile) else {
            continue;
        };
        if let Some(known) = counted.iter_mut().find(|known| known.profile == profile) {
            known.count += 1;
        } else {
            counted.push(MigDevices { profile, count: 1, attributes: attributes().map(|has| attributes_of(&has)) });
        }
    }
    counted.sort_by(|one, other| one.profile.cmp(&other.profile));
    counted
}

fn attributes_of(has: &DeviceAttributes) -> MigAttributes {
    MigAttributes {
        memory_mib: has.memory_size_mb,
        multiprocessors: has.multiprocessor_count,
        gpu_slices: has.gpu_instance_slice_count,
        compute_slices: has.compute_instance_slice_count,
        copy_engines: has.shared_copy_engine_count,
        decoders: has.shared_decoder_count,
        encoders: has.shared_encoder_count,
        jpeg_engines: has.shared_jpeg_count,
        ofa_engines: has.shared_ofa_count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mig_devices_are_counted_by_the_profile_in_their_names() {
        let names = ["NVIDIA H100 80GB HBM3 MIG 3g.40gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "A MIG 1g.10gb", "A"];
        let names = names.map(|name| Ok(name.to_owned())).into_iter().chain([Err(NvmlError::Unknown)]);
        let counts: Vec<_> = counted(names.map(|name| (name, || None)))
            .into_iter()
            .map(|devices| (devices.profile, devices.count))
            .collect();
        assert_eq!(counts, [("1g.10gb".to_owned(), 2), ("3g.40gb".to_owned(), 1)]);
        let profiles = ["1g.24gb", "1g.24gb+gfx", "1g.24gb+me", "1g.24gb+me.all", "1g.24gb-me"];
        let names = profiles.map(|profile| (Ok(format!("NVIDIA RTX PRO 6000 MIG {profile}")), || None));
        let counted = counted(names.into_iter());
        assert_eq!(counted.iter().map(|devices| devices.profile.as_str()).collect::<Vec<_>>(), profiles);
    }

    #[test]
    fn attributes_are_those_of_the_first_device_of_a_profile() {
        let has = |number| {
            move || {
                Some(DeviceAttributes {
                    multiprocessor_count: number,
                    shared_copy_engine_count: 2,
                    shared_decoder_count: 3,
                    shared_encoder_count: 4,
                    shared_jpeg_count: 5,
                    shared_ofa_count: 6,
                    gpu_instance_slice_count: 7,
                    compute_instance_slice_count: 8,
                    memory_size_mb: 9984,
                })
            }
        };
        let found = [14, 15].map(|number| (Ok("A MIG 1g.10gb".to_owned()), has(number)));
        let expected = MigAttributes {
            memory_mib: 9984,
            multiprocessors: 14,
            gpu_slices: 7,
            compute_slices: 8,
            copy_engines: 2,
            decoders: 3,
            encoders: 4,
            jpeg_engines: 5,
            ofa_engines: 6,
        };
        let devices = MigDevices { profile: "1g.10gb".into(), count: 2, attributes: Some(expected) };
        assert_eq!(counted(found.into_iter()), [devices]);
    }
}
