//! The NVIDIA GPUs on the PCI bus. Requires only sysfs, not a driver.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

use gpu_operator_crd::report::VirtualGpus;

use super::vgpu;
use crate::root::{HostRoot, present};

const DEVICES: &str = "/sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";
/// The first two bytes of the class: VGA controller and 3D controller. A GPU's audio or USB function, an `NVSwitch`
/// (0x0680) and a bridge have others.
const GPU_CLASSES: [&str; 2] = ["0300", "0302"];
/// The class of `NVSwitches`, among other bridges.
const BRIDGE_CLASS: &str = "0680";
/// Part of the name of every driver that assigns devices to virtual machines, or of its module: `vfio-pci`,
/// `nvgrace-gpu-vfio-pci`, `nvidia-vgpu-vfio`.
const VFIO: &str = "vfio";
/// Keeps a device from other drivers until one of those takes it.
const PCI_STUB: &str = "pci-stub";
/// The name of NVIDIA's kernel driver on the bus.
const NVIDIAS_DRIVER: &str = "nvidia";
/// The mediated devices, each a link into the device that provides it: virtual GPUs before Linux 6.8.
const MEDIATED: &str = "/sys/bus/mdev/devices";

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
    /// Those that are not passed through, by address.
    pub gpus: Vec<PciGpu>,
    /// Kernel drivers other than NVIDIA's that hold some of those GPUs, by the GPU's address.
    pub held_by: BTreeMap<String, String>,
    /// Those that virtual machines use, whole or by their virtual functions.
    pub passed_through: Vec<String>,
    /// NVIDIA's bridges, among them `NVSwitches`: the device IDs of each, without the vendor.
    pub bridges: Vec<String>,
    /// Whether NVIDIA's devices include virtual GPUs; `None` if the configuration of one of them cannot be read.
    pub vgpu: Option<VirtualGpus>,
}

/// Returns the NVIDIA GPUs on the bus that are not passed through to virtual machines, by address.
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
    let mut serves_virtual_machines = parents_of_mediated(host);
    let mut drivers = Vec::new();
    for address in addresses {
        let path = format!("{DEVICES}/{address}");
        let read = |source| PciError::Read { path: path.clone(), source };
        if !is_nvidias(host, &path).map_err(read)? {
            continue;
        }
        if let Some(physical) = link_name(host, &path, "physfn").map_err(read)? {
            if is_assigned(host, &path).map_err(read)? {
                serves_virtual_machines.insert(physical.to_ascii_lowercase());
            }
            continue;
        }
        let config = host.bytes(format!("{path}/config"), vgpu::CONFIG_BYTES).ok();
        bus.vgpu = bus.vgpu.zip(config).and_then(|(known, config)| vgpu::add_device(known, &config));
        let Some(gpu) = device(host, &path, &address).map_err(read)? else {
            continue;
        };
        if !GPU_CLASSES.iter().any(|class| gpu.class.starts_with(class)) {
            bus.bridges.extend(gpu.class.starts_with(BRIDGE_CLASS).then_some(gpu.device_id));
            continue;
        }
        drivers.push(link_name(host, &path, "driver").map_err(read)?);
        if is_bound_for_virtual_machines(host, &path).map_err(read)? {
            serves_virtual_machines.insert(gpu.address.clone());
        }
        bus.gpus.push(gpu);
    }
    // A GPU's virtual functions may precede it or follow it.
    let found = std::mem::take(&mut bus.gpus).into_iter().zip(drivers);
    for (gpu, driver) in found {
        if serves_virtual_machines.contains(&gpu.address) {
            bus.passed_through.push(gpu.address);
            continue;
        }
        if let Some(driver) = driver.filter(|driver| driver != NVIDIAS_DRIVER) {
            bus.held_by.insert(gpu.address.clone(), driver);
        }
        bus.gpus.push(gpu);
    }
    Ok(bus)
}

/// Returns the addresses of the PCI devices that provide mediated devices: each of the folders above such a device, of which one is the
/// physical function.
fn parents_of_mediated(host: &HostRoot) -> BTreeSet<String> {
    let names = host.names(MEDIATED).unwrap_or_default();
    let devices = names.iter().filter_map(|name| host.resolve(format!("{MEDIATED}/{name}")).ok());
    let mut parents = BTreeSet::new();
    for device in devices {
        for folder in device.ancestors().skip(1) {
            let name = |folder: &Path| Some(folder.file_name()?.to_str()?.to_ascii_lowercase());
            parents.extend(name(folder).filter(|name| normalise(name).is_some()));
            // A virtual function is no folder of its GPU.
            parents.extend(fs::read_link(folder.join("physfn")).ok().as_deref().and_then(name));
        }
    }
    parents
}

/// Whether a virtual function is in use for a virtual machine: by its driver, or by the type of virtual GPU that NVIDIA's manager of
/// virtual GPUs has given to it (Linux 6.8 and later, by NVIDIA's documentation; unverified).
fn is_assigned(host: &HostRoot, path: &str) -> io::Result<bool> {
    let kind = host.read_if_present(format!("{path}/nvidia/current_vgpu_type"))?;
    Ok(kind.is_some_and(|kind| kind != "0") || is_bound_for_virtual_machines(host, path)?)
}

/// Whether the device's driver is one for virtual machines, by its name or its module's.
fn is_bound_for_virtual_machines(host: &HostRoot, path: &str) -> io::Result<bool> {
    let names = [link_name(host, path, "driver")?, link_name(host, path, "driver/module")?];
    Ok(names.into_iter().flatten().any(|name| name.contains(VFIO) || name == PCI_STUB || name == "pci_stub"))
}

fn is_nvidias(host: &HostRoot, path: &str) -> io::Result<bool> {
    let vendor = host.read_if_present(format!("{path}/vendor"))?;
    Ok(vendor.is_some_and(|vendor| vendor.eq_ignore_ascii_case(NVIDIA)))
}

/// Returns one of NVIDIA's devices as if it were a GPU.
fn device(host: &HostRoot, path: &str, address: &str) -> io::Result<Option<PciGpu>> {
    let attribute = |name: &str| host.read_if_present(format!("{path}/{name}"));
    let (Some(class), Some(device)) = (attribute("class")?, attribute("device")?) else {
        return Ok(None);
    };
    let class = class.to_ascii_lowercase();
    let device_id = device.trim_start_matches("0x").to_ascii_lowercase();
    let class = class.trim_start_matches("0x").to_owned();
    Ok(Some(PciGpu { address: address.to_ascii_lowercase(), device_id, class }))
}

/// Returns the name of the target of one of a device's links; the target may itself be outside the mount.
fn link_name(host: &HostRoot, path: &str, link: &str) -> io::Result<Option<String>> {
    let Some(device) = present(host.resolve(path))? else {
        return Ok(None);
    };
    let target = present(fs::read_link(device.join(link)))?;
    Ok(target.and_then(|target| Some(target.file_name()?.to_str()?.to_owned())))
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
mod tests;
