//! The NVIDIA GPUs on the PCI bus. Requires only sysfs, not a driver.

use std::{collections::BTreeMap, fs, io};

use gpu_operator_crd::report::VirtualGpus;

use super::vgpu;
use crate::root::{HostRoot, present};

const DEVICES: &str = "/sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";
/// The first two bytes of the class: VGA controller and 3D controller. A GPU's audio or USB function, an NVSwitch
/// (0x0680) and a bridge have others.
const GPU_CLASSES: [&str; 2] = ["0x0300", "0x0302"];
/// The driver of devices that are assigned to a virtual machine.
const VFIO: &str = "vfio-pci";
/// The name of NVIDIA's kernel driver on the bus.
const NVIDIAS_DRIVER: &str = "nvidia";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciGpu {
    /// As sysfs writes it: `0000:06:00.0`.
    pub address: String,
    /// Without the vendor: four lower-case hex digits.
    pub device_id: String,
    /// Six lower-case hex digits.
    pub class: String,
}

/// The bus cannot be read, so nothing is known about it; in particular, not that a GPU is gone.
#[derive(Debug, thiserror::Error)]
pub enum PciError {
    #[error("no sysfs under {0}: mount the host's / or its /sys there")]
    NoSysfs(String),
    #[error("cannot read {path}")]
    Read { path: String, source: io::Error },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bus {
    /// Those that are not bound to vfio-pci, by address.
    pub gpus: Vec<PciGpu>,
    /// Kernel drivers other than NVIDIA's that hold some of those GPUs, by the GPU's address.
    pub held_by: BTreeMap<String, String>,
    pub passed_through: Vec<String>,
    /// Whether NVIDIA's devices include virtual GPUs; `None` if the configuration of one of them cannot be read.
    pub vgpu: Option<VirtualGpus>,
}

/// Returns the NVIDIA GPUs on the bus that are not bound to vfio-pci, by address.
pub fn gpus(host: &HostRoot) -> Result<Vec<PciGpu>, PciError> {
    Ok(bus(host)?.gpus)
}

/// Returns the NVIDIA GPUs on the bus and the kernel drivers that they are bound to.
pub fn bus(host: &HostRoot) -> Result<Bus, PciError> {
    // A machine without a PCI bus has no such directory, but still has a sysfs.
    if host.metadata("/sys/bus").is_err() {
        return Err(PciError::NoSysfs(host.as_path().display().to_string()));
    }
    let addresses = host.names(DEVICES).map_err(|source| PciError::Read { path: DEVICES.to_owned(), source })?;
    let mut bus = Bus { vgpu: Some(VirtualGpus::default()), ..Bus::default() };
    for address in addresses {
        let path = format!("{DEVICES}/{address}");
        let read = |source| PciError::Read { path: path.clone(), source };
        if !is_nvidias(host, &path).map_err(read)? {
            continue;
        }
        let config = host.bytes(format!("{path}/config"), vgpu::CONFIG_BYTES).ok();
        bus.vgpu = bus.vgpu.zip(config).and_then(|(known, config)| vgpu::add_device(known, &config));
        let Some((gpu, driver)) = gpu(host, &path, &address).map_err(read)? else {
            continue;
        };
        match driver {
            Some(driver) if driver == VFIO => {
                bus.passed_through.push(gpu.address);
                continue;
            }
            Some(driver) if driver != NVIDIAS_DRIVER => drop(bus.held_by.insert(gpu.address.clone(), driver)),
            _ => {}
        }
        bus.gpus.push(gpu);
    }
    Ok(bus)
}

fn is_nvidias(host: &HostRoot, path: &str) -> io::Result<bool> {
    let vendor = host.read_if_present(format!("{path}/vendor"))?;
    Ok(vendor.is_some_and(|vendor| vendor.eq_ignore_ascii_case(NVIDIA)))
}

/// Returns the GPU behind one of NVIDIA's devices, and the kernel driver that it is bound to.
fn gpu(host: &HostRoot, path: &str, address: &str) -> io::Result<Option<(PciGpu, Option<String>)>> {
    let attribute = |name: &str| host.read_if_present(format!("{path}/{name}"));
    let (Some(class), Some(device)) = (attribute("class")?, attribute("device")?) else {
        return Ok(None);
    };
    let class = class.to_ascii_lowercase();
    if !GPU_CLASSES.iter().any(|gpu| class.starts_with(gpu)) {
        return Ok(None);
    }
    let device_id = device.trim_start_matches("0x").to_ascii_lowercase();
    let class = class.trim_start_matches("0x").to_owned();
    Ok(Some((PciGpu { address: address.to_ascii_lowercase(), device_id, class }, bound_to(host, path)?)))
}

/// Returns the name of the link's target, which may itself be outside the mount.
fn bound_to(host: &HostRoot, path: &str) -> io::Result<Option<String>> {
    let Some(device) = present(host.resolve(path))? else {
        return Ok(None);
    };
    let driver = present(fs::read_link(device.join("driver")))?;
    Ok(driver.and_then(|driver| Some(driver.file_name()?.to_str()?.to_owned())))
}

/// Returns a PCI address as sysfs writes it, from NVML's notation (`00000000:06:00.0`) or sysfs' own; `None` if the
/// text is not a PCI address.
pub fn normalise(address: &str) -> Option<String> {
    let (domain, rest) = address.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let (bus, rest) = rest.split_once(':')?;
    let bus = u8::from_str_radix(bus, 16).ok()?;
    let (device, function) = rest.split_once('.')?;
    let device = u8::from_str_radix(device, 16).ok()?;
    let function = u8::from_str_radix(function, 16).ok()?;
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A sysfs with these devices: address, vendor, device, class, driver.
    fn sysfs(devices: &[(&str, &str, &str, &str, &str)]) -> (tempfile::TempDir, HostRoot) {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("sys/bus/pci/devices")).unwrap();
        for (address, vendor, device, class, driver) in devices {
            // As in the kernel: a link into the device tree.
            let real = directory.path().join("sys/devices/pci0000:00").join(address);
            fs::create_dir_all(&real).unwrap();
            for (name, value) in [("vendor", vendor), ("device", device), ("class", class)] {
                if !value.is_empty() {
                    fs::write(real.join(name), format!("{value}\n")).unwrap();
                }
            }
            if !driver.is_empty() {
                symlink(format!("../../../bus/pci/drivers/{driver}"), real.join("driver")).unwrap();
            }
            symlink(
                format!("../../../devices/pci0000:00/{address}"),
                directory.path().join("sys/bus/pci/devices").join(address),
            )
            .unwrap();
        }
        let root = HostRoot::new(directory.path());
        (directory, root)
    }

    fn found(devices: &[(&str, &str, &str, &str, &str)]) -> Vec<String> {
        let (_directory, root) = sysfs(devices);
        gpus(&root).unwrap().into_iter().map(|gpu| format!("{} {}", gpu.address, gpu.device_id)).collect()
    }

    #[test]
    fn both_halves_of_a_k80_are_found_in_order_of_address() {
        let k80 = [
            ("0000:07:00.0", "0x10de", "0x102d", "0x030200", "nvidia"),
            ("0000:06:00.0", "0x10de", "0x102d", "0x030200", ""),
        ];
        assert_eq!(found(&k80), ["0000:06:00.0 102d", "0000:07:00.0 102d"]);
    }

    #[test]
    fn only_nvidias_vga_and_3d_controllers_are_gpus() {
        let devices = [
            ("0000:01:00.0", "0x10de", "0x1CB6", "0x030000", ""),
            ("0000:01:00.1", "0x10de", "0x0fb9", "0x040300", "snd_hda_intel"),
            ("0000:02:00.0", "0x10de", "0x2330", "0x030200", ""),
            ("0000:03:00.0", "0x10de", "0x22a3", "0x068000", ""),
            ("0000:04:00.0", "0x10de", "0x1ad6", "0x0c0330", ""),
        ];
        assert_eq!(found(&devices), ["0000:01:00.0 1cb6", "0000:02:00.0 2330"]);
    }

    #[test]
    fn a_gpu_assigned_to_a_virtual_machine_is_not_counted() {
        let devices = [
            ("0000:01:00.0", "0x10de", "0x2330", "0x030200", "vfio-pci"),
            ("0000:02:00.0", "0x10de", "0x2330", "0x030200", "nvidia"),
        ];
        assert_eq!(found(&devices), ["0000:02:00.0 2330"]);
    }

    #[test]
    fn other_drivers_and_passed_through_gpus_are_reported() {
        let devices = [
            ("0000:01:00.0", "0x10de", "0x2330", "0x030200", "vfio-pci"),
            ("0000:02:00.0", "0x10de", "0x2330", "0x030200", "nvidia"),
            ("0000:03:00.0", "0x10de", "0x2330", "0x030200", "nouveau"),
            ("0000:04:00.0", "0x10de", "0x2330", "0x030200", ""),
            ("0000:05:00.0", "0x10de", "0x2330", "0x030200", "vfio-pci"),
            ("0000:05:00.1", "0x10de", "0x0fb9", "0x040300", "vfio-pci"),
        ];
        let (_directory, root) = sysfs(&devices);
        let bus = bus(&root).unwrap();
        assert_eq!(bus.gpus.len(), 3);
        assert_eq!(bus.passed_through, ["0000:01:00.0", "0000:05:00.0"]);
        assert_eq!(bus.held_by, BTreeMap::from([("0000:03:00.0".to_owned(), "nouveau".to_owned())]));
    }

    #[test]
    fn virtual_gpus_are_reported_only_if_every_config_can_be_read() {
        let devices = [
            ("0000:01:00.0", "0x10de", "0x2330", "0x030200", "nvidia"),
            ("0000:02:00.0", "0x10de", "0x1CB6", "0x030000", ""),
            ("0000:02:00.1", "0x10de", "0x0fb9", "0x040300", ""),
        ];
        let (directory, root) = sysfs(&devices);
        let classes: Vec<_> = bus(&root).unwrap().gpus.into_iter().map(|gpu| gpu.class).collect();
        assert_eq!(classes, ["030200", "030000"]);
        assert_eq!(bus(&root).unwrap().vgpu, None);
        let config = |address: &str, bytes: usize| {
            fs::write(directory.path().join("sys/bus/pci/devices").join(address).join("config"), vec![0; bytes])
                .unwrap();
        };
        for (address, ..) in &devices {
            config(address, 4096);
        }
        assert_eq!(bus(&root).unwrap().vgpu, Some(VirtualGpus::default()));
        // What the kernel shows to readers without privileges.
        config("0000:02:00.1", 64);
        assert_eq!(bus(&root).unwrap().vgpu, None);
    }

    #[test]
    fn a_vga_controller_of_another_vendor_is_not_counted() {
        assert!(found(&[("0000:00:02.0", "0x8086", "0x3e98", "0x030000", "i915")]).is_empty());
    }

    #[test]
    fn a_device_that_disappears_while_it_is_read_is_skipped() {
        let devices = [
            ("0000:01:00.0", "0x10de", "0x2330", "", ""),
            ("0000:02:00.0", "0x10de", "", "0x030200", ""),
            ("0000:03:00.0", "", "", "", ""),
            ("0000:04:00.0", "0x10de", "0x2330", "0x030200", ""),
        ];
        let (directory, root) = sysfs(&devices);
        symlink("../../../devices/pci0000:00/gone", directory.path().join("sys/bus/pci/devices/0000:05:00.0")).unwrap();
        let addresses: Vec<_> = gpus(&root).unwrap().into_iter().map(|gpu| gpu.address).collect();
        assert_eq!(addresses, ["0000:04:00.0"]);
    }

    #[test]
    fn a_machine_without_a_pci_bus_has_no_gpus() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("sys/bus")).unwrap();
        assert!(gpus(&HostRoot::new(directory.path())).unwrap().is_empty());
    }

    #[test]
    fn a_missing_sysfs_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let error = gpus(&HostRoot::new(directory.path())).unwrap_err();
        assert!(matches!(error, PciError::NoSysfs(_)), "{error}");
    }

    #[test]
    fn nvml_addresses_are_normalised_to_sysfs_notation() {
        for (from, to) in [
            ("00000000:06:00.0", Some("0000:06:00.0")),
            ("00000000:AF:1F.0", Some("0000:af:1f.0")),
            ("00010000:01:00.0", Some("10000:01:00.0")),
            ("0000:06:00.0", Some("0000:06:00.0")),
            ("", None),
            ("GPU-1234", None),
            ("00000000:06:00", None),
        ] {
            assert_eq!(normalise(from).as_deref(), to, "{from}");
        }
    }
}
