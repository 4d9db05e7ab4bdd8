//! Detects virtual GPUs, created by a hypervisor, by a capability in their PCI configuration, which also contains the
//! version of the hypervisor's driver. Pure.
//!
//! The layout of the capability is taken from NVIDIA's GPU feature discovery; on hardware it is unverified.

use gpu_operator_crd::report::VirtualGpus;

/// The bytes of a device's configuration that are read. Without privileges, the kernel returns only the first 64.
pub const CONFIG_BYTES: u64 = 256;

/// The position of the status byte. Its bit [`HAS_CAPABILITIES`] is set if there is a list of capabilities.
const STATUS: usize = 0x06;
const HAS_CAPABILITIES: u8 = 0x10;
/// The position of the byte with the first capability's position.
const FIRST_CAPABILITY: usize = 0x34;
const VENDOR_SPECIFIC: u8 = 0x09;
/// The signature of a virtual GPU's capability, after id, next and length.
const SIGNATURE: [u8; 2] = *b"VF";
/// The position of the records, each with a type and a length, up to the one with version and branch of the driver.
const RECORDS: usize = 5;
const DRIVER_RECORD: u8 = 0;
const FIELD_LENGTH: usize = 10;

/// Adds the configuration of another device; `None` if it is incomplete.
pub fn add_device(known: VirtualGpus, config: &[u8]) -> Option<VirtualGpus> {
    let config: &[u8; 256] = config.get(..256)?.try_into().ok()?;
    let Some(capability) = vendor_specific(config).filter(|capability| capability.get(3..5) == Some(&SIGNATURE)) else {
        return Some(known);
    };
    let (version, branch) = driver(capability).unzip();
    Some(VirtualGpus {
        present: true,
        host_driver_version: version.or(known.host_driver_version),
        host_driver_branch: branch.or(known.host_driver_branch),
    })
}

fn vendor_specific(config: &[u8; 256]) -> Option<&[u8]> {
    let mut at = config[FIRST_CAPABILITY];
    if config[STATUS] & HAS_CAPABILITIES == 0 {
        return None;
    }
    // Bounded, in case the list loops.
    for _ in 0..config.len() {
        let start = usize::from(at);
        let [kind, next, length] = config.get(start..start + 3)?.try_into().ok()?;
        if at == 0 || kind == u8::MAX {
            return None;
        }
        if kind == VENDOR_SPECIFIC {
            return config.get(start..start + usize::from(length));
        }
        at = next;
    }
    None
}

/// Returns version and branch of the hypervisor's driver.
fn driver(capability: &[u8]) -> Option<(String, String)> {
    let mut at = RECORDS;
    while *capability.get(at)? != DRIVER_RECORD {
        at += usize::from(*capability.get(at + 1)?).max(1);
    }
    let field = |from: usize| {
        let bytes = capability.get(from..from + FIELD_LENGTH)?;
        Some(String::from_utf8_lossy(bytes).trim_matches('\0').to_owned())
    };
    Some((field(at + 2)?, field(at + 2 + FIELD_LENGTH)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration with these capabilities, one after the other.
    fn config(capabilities: &[&[u8]]) -> Vec<u8> {
        let mut config = vec![0; 256];
        config[STATUS] = HAS_CAPABILITIES;
        let mut at = 0x60_u8;
        let mut pointer = FIRST_CAPABILITY;
        for capability in capabilities {
            let start = usize::from(at);
            config[pointer] = at;
            config[start..start + capability.len()].copy_from_slice(capability);
            config[start + 1] = 0;
            pointer = start + 1;
            at += u8::try_from(capability.len()).unwrap();
        }
        config
    }

    fn virtual_gpu(records: &[u8]) -> Vec<u8> {
        let mut capability = vec![VENDOR_SPECIFIC, 0, 0, b'V', b'F'];
        capability.extend(records);
        capability[2] = u8::try_from(capability.len()).unwrap();
        capability
    }

    const DRIVER: &[u8] = b"\0\x16550.90\0\0\0\0r550_00\0\0\0";

    fn found(config: &[u8]) -> Option<(bool, Option<String>, Option<String>)> {
        let known = add_device(VirtualGpus::default(), config)?;
        Some((known.present, known.host_driver_version, known.host_driver_branch))
    }

    #[test]
    fn a_virtual_gpu_is_detected_by_its_capability() {
        let power: &[u8] = &[0x01, 0, 0, 0];
        let behind_another = [&[7, 4, 1, 2], DRIVER].concat();
        let detected = Some((true, Some("550.90".to_owned()), Some("r550_00".to_owned())));
        for (config, expected) in [
            (config(&[power, &virtual_gpu(DRIVER)]), detected.clone()),
            (config(&[&virtual_gpu(&behind_another)]), detected),
            // A record without a length leads nowhere.
            (config(&[&virtual_gpu(&[7, 0])]), Some((true, None, None))),
            (config(&[&virtual_gpu(&DRIVER[..12])]), Some((true, None, None))),
            (config(&[power]), Some((false, None, None))),
            (config(&[&[VENDOR_SPECIFIC, 0, 5, b'X', b'Y']]), Some((false, None, None))),
            (config(&[]), Some((false, None, None))),
        ] {
            assert_eq!(found(&config), expected, "{config:x?}");
        }
    }

    #[test]
    fn an_incomplete_config_is_unknown_and_a_corrupt_one_harmless() {
        assert_eq!(found(&[0; 64]), None);
        // A GPU that fell off the bus.
        assert_eq!(found(&[0xff; 256]), Some((false, None, None)));
        let mut looped = config(&[&[0x01, 0, 0, 0]]);
        looped[0x61] = 0x60;
        assert_eq!(found(&looped), Some((false, None, None)));
        let mut without_a_list = config(&[&virtual_gpu(DRIVER)]);
        without_a_list[STATUS] = 0;
        assert_eq!(found(&without_a_list), Some((false, None, None)));
    }

    #[test]
    fn one_virtual_gpu_among_other_devices_is_enough() {
        let known = add_device(VirtualGpus::default(), &config(&[&virtual_gpu(DRIVER)])).unwrap();
        assert_eq!(add_device(known.clone(), &config(&[])), Some(known));
    }
}
