//! The sysfs files of a GPU's PCI device that programs read.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use super::gpu::Gpu;

/// The PCI classes of GPUs with display outputs and of GPUs without.
const VGA: &str = "0x030000";
const COMPUTE: &str = "0x030200";
/// Memory regions of a device: one of 16 MiB, and twelve empty ones.
const FIRST_REGION: &str = "0x00000000f0000000 0x00000000f0ffffff 0x0000000000040200\n";
const EMPTY_REGION: &str = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
/// The size of the configuration space in bytes. It starts with the ids of vendor and device.
const CONFIG_SPACE: usize = 256;

/// Writes the files of a GPU to its folder.
pub(super) fn write(place: &Path, gpu: &Gpu) -> Result<()> {
    let id = gpu.pci_device_id.trim_start_matches("0x").to_lowercase();
    let (device, vendor) = id.split_at_checked(4).context("the PCI id does not have eight digits")?;
    let has_display = ["Quadro", "GeForce"].iter().any(|brand| gpu.name.contains(brand));
    fs::create_dir_all(place)?;
    for (file, content) in [
        ("vendor", format!("0x{vendor}\n")),
        ("device", format!("0x{device}\n")),
        ("class", format!("{}\n", if has_display { VGA } else { COMPUTE })),
        ("numa_node", "-1\n".to_owned()),
        ("resource", FIRST_REGION.to_owned() + &EMPTY_REGION.repeat(12)),
    ] {
        fs::write(place.join(file), content)?;
    }
    let mut config = vec![0; CONFIG_SPACE];
    for (bytes, number) in config.chunks_exact_mut(2).zip([vendor, device]) {
        bytes.copy_from_slice(&u16::from_str_radix(number, 16).context("invalid PCI id")?.to_le_bytes());
    }
    fs::write(place.join("config"), config)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_files_that_gpu_feature_discovery_reads() {
        let folder = tempfile::tempdir().unwrap();
        for (gpu, class) in [(&Gpu::h100(1)[0], COMPUTE), (&Gpu::several(1, "Quadro K620", 0x13bb, 2_000)[0], VGA)] {
            write(folder.path(), gpu).unwrap();
            let text = |file: &str| fs::read_to_string(folder.path().join(file)).unwrap();
            assert_eq!(text("class").trim(), class);
            assert!(text("resource").lines().all(|region| region.split(' ').count() == 3));
        }
        let config = fs::read(folder.path().join("config")).unwrap();
        assert_eq!((config.len(), &config[..4]), (256, [0xde, 0x10, 0xbb, 0x13].as_slice()));
    }
}
