//! A GPU's MIG devices, by profile.

use std::collections::BTreeMap;

use gpu_operator_crd::report::MigDevices;
use nvml_wrapper::{Device, error::NvmlError};

/// NVML's word for MIG mode being on.
const ENABLED: u32 = 1;

/// The MIG devices of a GPU; `None` where it is not in MIG mode, or the driver knows of none.
#[must_use]
pub fn devices(gpu: &Device<'_>) -> Option<Vec<MigDevices>> {
    if gpu.mig_mode().ok()?.current != ENABLED {
        return None;
    }
    let places = gpu.mig_device_count().ok()?;
    // Places without a device answer that there is none.
    let found = (0..places).filter_map(|place| gpu.mig_device_by_index(place).ok());
    Some(counted(found.map(|device| device.name())))
}

/// How many there are of each profile, from their names. One whose name cannot be read is none that could be expected.
fn counted(names: impl Iterator<Item = Result<String, NvmlError>>) -> Vec<MigDevices> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for name in names.flatten() {
        if let Some((_, profile)) = name.rsplit_once("MIG ") {
            *counts.entry(profile.trim().to_owned()).or_default() += 1;
        }
    }
    counts.into_iter().map(|(profile, count)| MigDevices { profile, count }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mig_devices_are_counted_by_the_profile_at_the_end_of_their_names() {
        let names = ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "A MIG 1g.10gb", "A"];
        let names = names.map(|name| Ok(name.to_owned())).into_iter().chain([Err(NvmlError::Unknown)]);
        let counts: Vec<_> = counted(names).into_iter().map(|devices| (devices.profile, devices.count)).collect();
        assert_eq!(counts, [("1g.10gb".to_owned(), 2), ("3g.40gb".to_owned(), 1)]);
    }
}
