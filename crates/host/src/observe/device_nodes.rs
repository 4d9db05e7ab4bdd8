//! The device nodes that programs open in addition to those of the GPUs: which a running driver has, and which a root
//! lacks.

use std::{os::unix::fs::FileTypeExt, path::PathBuf};

use crate::root::HostRoot;

/// The nodes that every CUDA program opens, on any GPU.
const NEEDED: [&str; 3] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"];

/// The folder of the MIG capabilities' nodes, below `/dev`.
const CAPS: &str = "nvidia-caps/";

/// The kernel's list of drivers and their major numbers.
const MAJORS: &str = "/proc/devices";

/// The MIG capabilities, each a file with the minor number of its node.
const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";

/// The most folders that are searched: more than the capabilities of sixteen GPUs have.
const MAX_FOLDERS: usize = 4096;

/// A character device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its path below `/dev`.
    pub name: String,
    /// Its major number.
    pub major: u64,
    /// Its minor number.
    pub minor: u64,
    pub mode: u32,
}

/// A MIG capability: the minor number of its node, and the node's mode.
type Capability = (u64, u32);

/// The mode of nodes that every program may open.
const OPEN_TO_ALL: u32 = 0o666;

/// Returns the device nodes that programs need and that a driver's root lacks. `own` is this process' own root, whose
/// `/proc` shows the kernel's devices and the MIG capabilities.
pub fn missing(host: &HostRoot, own: &HostRoot, root: &str) -> Vec<String> {
    let is_there = |name: &String| {
        let node = host.metadata(format!("{root}/dev/{name}"));
        node.is_ok_and(|node| node.file_type().is_char_device())
    };
    let of_mig = wanted_from(&own.read(MAJORS).unwrap_or_default(), &capabilities(own));
    let of_mig = of_mig.into_iter().map(|device| device.name).filter(|name| name.starts_with(CAPS));
    NEEDED.map(str::to_owned).into_iter().chain(of_mig).filter(|name| !is_there(name)).collect()
}

/// Returns the devices that a running driver has, from the kernel's list of majors and the minors of the MIG
/// capabilities.
fn wanted_from(majors: &str, capabilities: &[Capability]) -> Vec<Device> {
    let number = |name: &str| {
        let lines = majors.lines().take_while(|line| !line.starts_with("Block"));
        lines.filter_map(|line| line.trim().split_once(' ')).find(|(_, of)| *of == name)?.0.parse::<u64>().ok()
    };
    let device = |name: &str, major, minor| Device { name: name.to_owned(), major, minor, mode: OPEN_TO_ALL };
    let mut devices = Vec::new();
    if let Some(uvm) = number("nvidia-uvm") {
        devices.extend([device("nvidia-uvm", uvm, 0), device("nvidia-uvm-tools", uvm, 1)]);
    }
    // Drivers before 560 are listed under the name of their frontend.
    if let Some(nvidia) = number("nvidia").or_else(|| number("nvidia-frontend")) {
        devices.extend([device("nvidiactl", nvidia, 255), device("nvidia-modeset", nvidia, 254)]);
    }
    if let Some(caps) = number("nvidia-caps") {
        let of_mig =
            |(cap, mode): &Capability| Device { mode: *mode, ..device(&format!("{CAPS}nvidia-cap{cap}"), caps, *cap) };
        devices.extend(capabilities.iter().map(of_mig));
    }
    devices
}

/// Returns the MIG capabilities, from the driver's files with `DeviceFileMinor: N` and `DeviceFileMode: N` lines.
fn capabilities(own: &HostRoot) -> Vec<Capability> {
    let mut folders = vec![PathBuf::from(CAPABILITIES)];
    let mut minors = Vec::new();
    let mut seen = 0;
    while let Some(folder) = folders.pop().filter(|_| seen < MAX_FOLDERS) {
        seen += 1;
        for name in own.names(&folder).unwrap_or_default() {
            let path = folder.join(name);
            match own.metadata(&path) {
                Ok(found) if found.is_dir() => folders.push(path),
                Ok(_) => minors.extend(own.read(&path).ok().as_deref().and_then(capability)),
                Err(_) => {}
            }
        }
    }
    minors.sort_unstable();
    minors.dedup();
    minors
}

fn capability(text: &str) -> Option<Capability> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    let mode = value("DeviceFileMode:").and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o444);
    Some((value("DeviceFileMinor:")?, mode))
}

/// Returns the devices that a running driver has. `host` shows the kernel's devices, and `own` the MIG capabilities.
pub fn wanted(host: &HostRoot, own: &HostRoot) -> Vec<Device> {
    wanted_from(&host.read(MAJORS).unwrap_or_default(), &capabilities(own))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use gpu_operator_crd::report::CONTAINER_ROOT;

    use super::*;

    const OF_580: &str = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n195 nvidia-modeset\n506 nvidia-caps\n510 nvidia-uvm\n\nBlock devices:\n  7 nvidia-uvm\n";

    fn listed(majors: &str, capabilities: &[Capability]) -> Vec<String> {
        wanted_from(majors, capabilities).iter().map(|d| format!("{} {}:{}", d.name, d.major, d.minor)).collect()
    }

    #[test]
    fn device_numbers_come_from_the_kernel() {
        assert_eq!(
            listed(OF_580, &[(1, 0o400), (12, 0o444)]),
            [
                "nvidia-uvm 510:0",
                "nvidia-uvm-tools 510:1",
                "nvidiactl 195:255",
                "nvidia-modeset 195:254",
                "nvidia-caps/nvidia-cap1 506:1",
                "nvidia-caps/nvidia-cap12 506:12",
            ]
        );
        let old = "Character devices:\n195 nvidia-frontend\n509 nvidia-uvm\n";
        assert_eq!(
            listed(old, &[(3, 0o444)]),
            ["nvidia-uvm 509:0", "nvidia-uvm-tools 509:1", "nvidiactl 195:255", "nvidia-modeset 195:254"]
        );
        assert!(listed("Character devices:\n  1 mem\n", &[]).is_empty(), "no driver");
    }

    #[test]
    fn mig_capabilities_are_found_at_any_depth() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("proc/driver/nvidia/capabilities");
        for (file, minor) in [("mig/config", 1), ("gpu0/mig/gi1/access", 12), ("gpu0/mig/gi1/ci0/access", 13)] {
            let path = below.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")).unwrap();
        }
        fs::write(below.join("nonsense"), "DeviceFileMinor: x").unwrap();
        assert_eq!(capabilities(&HostRoot::new(folder.path())), [(1, 0o444), (12, 0o444), (13, 0o444)]);
    }

    #[test]
    fn a_plain_file_is_not_a_device_node() {
        let folder = tempfile::tempdir().unwrap();
        let dev = folder.path().join("run/nvidia/driver/dev");
        fs::create_dir_all(&dev).unwrap();
        fs::write(dev.join("nvidiactl"), "").unwrap();
        let (host, nothing) = (HostRoot::new(folder.path()), HostRoot::new(folder.path().join("none")));
        assert_eq!(missing(&host, &nothing, CONTAINER_ROOT), NEEDED);
    }

    #[test]
    fn missing_mig_nodes_are_reported_if_the_driver_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        for (file, text) in [
            ("proc/devices", OF_580),
            ("proc/driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\n"),
        ] {
            fs::create_dir_all(own.join(file).parent().unwrap()).unwrap();
            fs::write(own.join(file), text).unwrap();
        }
        let missing = missing(&HostRoot::new(folder.path()), &HostRoot::new(&own), CONTAINER_ROOT);
        assert_eq!(missing.last().map(String::as_str), Some("nvidia-caps/nvidia-cap1"));
    }
}
