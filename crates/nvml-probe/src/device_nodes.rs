//! The device nodes that programs open in addition to those of the GPUs. NVIDIA's driver container creates the nodes of
//! the GPUs and loads the modules behind the others, whose nodes nobody creates: CUDA fails without `nvidia-uvm`, and a
//! CDI specification written before the nodes exist omits them.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::stat::{Mode, SFlag, major, makedev, minor, mknod};
use tokio::time::sleep;

use crate::{
    driver::{self, CONTAINER_ROOT},
    host::HostRoot,
    words::chain,
};

/// The nodes that every CUDA program opens, on any GPU.
const NEEDED: [&str; 3] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"];
/// The folder of the MIG capabilities' nodes, below `/dev`.
const CAPS: &str = "nvidia-caps/";
/// The kernel's list of drivers and their major numbers.
const MAJORS: &str = "/proc/devices";
/// The MIG capabilities, each a file with the minor number of its node.
const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";
/// Where systemd looks up a device by its numbers when a container is given access to it.
const BY_NUMBER: &str = "/dev/char";
/// The most folders that are searched: more than the capabilities of sixteen GPUs have.
const MOST_FOLDERS: usize = 4096;

/// A device node could not be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot create {path}")]
pub struct DeviceError {
    path: PathBuf,
    source: io::Error,
}

fn unmade(path: &Path) -> impl FnOnce(io::Error) -> DeviceError {
    let path = path.to_owned();
    move |source| DeviceError { path, source }
}

/// A character device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    /// Its path below `/dev`.
    name: String,
    major: u64,
    minor: u64,
    mode: u32,
}

/// A MIG capability: the minor number of its node, and the node's mode.
type Capability = (u64, u32);

/// The mode of nodes that every program may open.
const OPEN_TO_ALL: u32 = 0o666;

/// Returns the device nodes that programs need and that a driver's root lacks. `own` is this process' own root, whose
/// `/proc` shows the kernel's devices and the MIG capabilities.
#[must_use]
pub fn missing(host: &HostRoot, own: &HostRoot, root: &str) -> Vec<String> {
    let is_there = |name: &String| {
        let node = host.resolve(format!("{root}/dev/{name}")).and_then(fs::metadata);
        node.is_ok_and(|node| node.file_type().is_char_device())
    };
    let of_mig = wanted(&own.read(MAJORS).unwrap_or_default(), &capabilities(own));
    let of_mig = of_mig.into_iter().map(|device| device.name).filter(|name| name.starts_with(CAPS));
    NEEDED.map(str::to_owned).into_iter().chain(of_mig).filter(|name| !is_there(name)).collect()
}

/// Creates the nodes under the root of the driver's container whenever its driver is loaded and its root is mounted.
/// Failures are logged once and retried at the next check. `own` is this process' own root: the kernel shows the MIG
/// capabilities in every container's `/proc`, and the host's cannot be mounted before they exist.
pub async fn keep(host: &HostRoot, own: &HostRoot, interval: Duration) {
    let mut last = String::new();
    loop {
        let said = match make(host, own) {
            Ok(made) if made.is_empty() => String::new(),
            Ok(made) => format!("created {}", made.join(", ")),
            Err(error) => chain(&error),
        };
        if !said.is_empty() && said != last {
            tracing::info!("{said}");
        }
        last = said;
        sleep(interval).await;
    }
}

/// Creates the missing nodes once. Returns their names; none if no driver is loaded or no root is mounted.
fn make(host: &HostRoot, own: &HostRoot) -> Result<Vec<String>, DeviceError> {
    let Ok(dev) = host.resolve(format!("{CONTAINER_ROOT}/dev")) else { return Ok(Vec::new()) };
    let loaded = driver::loaded(host).ok().flatten();
    let libraries = driver::libraries(host, CONTAINER_ROOT).unwrap_or_default();
    if loaded.is_none_or(|loaded| libraries.iter().all(|library| library.version != loaded)) {
        return Ok(Vec::new());
    }
    let mut made = Vec::new();
    for device in wanted(&host.read(MAJORS).unwrap_or_default(), &capabilities(own)) {
        if node(&dev, &device)? {
            made.push(device.name.clone());
        }
    }
    link_all(host, &dev)?;
    Ok(made)
}

/// Returns the devices that a running driver has, from the kernel's list of majors and the minors of the MIG
/// capabilities.
fn wanted(majors: &str, capabilities: &[Capability]) -> Vec<Device> {
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
    while let Some(folder) = folders.pop().filter(|_| seen < MOST_FOLDERS) {
        seen += 1;
        for name in own.names(&folder).unwrap_or_default() {
            let path = folder.join(name);
            match own.resolve(&path) {
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

/// Creates one node unless it exists. A node with other numbers belongs to an earlier driver and is replaced. Returns
/// whether it was created.
fn node(dev: &Path, device: &Device) -> Result<bool, DeviceError> {
    let path = dev.join(&device.name);
    let number = makedev(device.major, device.minor);
    match fs::symlink_metadata(&path) {
        Ok(there) if there.file_type().is_char_device() && there.rdev() == number => return Ok(false),
        Ok(_) => fs::remove_file(&path).map_err(unmade(&path))?,
        Err(_) => {}
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(unmade(folder))?;
    }
    match create(&path, number, Permissions::from_mode(device.mode)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(unmade(&path)(error)),
    }
}

/// Creates the node of a character device with exactly these permissions.
pub(crate) fn create(path: &Path, number: u64, permissions: Permissions) -> io::Result<()> {
    mknod(path, SFlag::S_IFCHR, Mode::empty(), number)?;
    // The umask restricts the mode that mknod is given, and clients open the node as other users.
    fs::set_permissions(path, permissions)
}

/// Links every NVIDIA node of the driver's root under the host's `/dev/char`, unless a working link or node exists
/// there.
fn link_all(host: &HostRoot, dev: &Path) -> Result<(), DeviceError> {
    let Ok(folder) = host.resolve(BY_NUMBER) else { return Ok(()) };
    for below in ["", "nvidia-caps"] {
        let Ok(entries) = fs::read_dir(dev.join(below)) else { continue };
        for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("nvidia")) {
            let Some(number) = entry.metadata().ok().filter(|node| node.file_type().is_char_device()) else { continue };
            let link = folder.join(format!("{}:{}", major(number.rdev()), minor(number.rdev())));
            let target = Path::new(CONTAINER_ROOT).join("dev").join(below).join(entry.file_name());
            link_one(&link, &target)?;
        }
    }
    Ok(())
}

fn link_one(link: &Path, target: &Path) -> Result<(), DeviceError> {
    match fs::read_link(link) {
        // The link belongs to an earlier driver of the container. What belongs to the host stays.
        Ok(old) if old != target && old.starts_with(CONTAINER_ROOT) => fs::remove_file(link).map_err(unmade(link))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // It is the same link, or a link or node of the host.
        Ok(_) | Err(_) => return Ok(()),
    }
    match symlink(target, link) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(unmade(link)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_580: &str = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n195 nvidia-modeset\n506 nvidia-caps\n510 nvidia-uvm\n\nBlock devices:\n  7 nvidia-uvm\n";

    fn listed(majors: &str, capabilities: &[Capability]) -> Vec<String> {
        wanted(majors, capabilities).iter().map(|d| format!("{} {}:{}", d.name, d.major, d.minor)).collect()
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

    #[test]
    fn a_link_into_the_containers_root_is_replaced_and_a_link_of_the_host_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (link, target) = (folder.path().join("195:0"), Path::new("/run/nvidia/driver/dev/nvidia0"));
        for (there, becomes) in [
            (None, "/run/nvidia/driver/dev/nvidia0"),
            (Some("/run/nvidia/driver/dev/nvidia9"), "/run/nvidia/driver/dev/nvidia0"),
            (Some("../nvidia0"), "../nvidia0"),
            (Some("/dev/nvidia0"), "/dev/nvidia0"),
        ] {
            let _ = fs::remove_file(&link);
            if let Some(there) = there {
                symlink(there, &link).unwrap();
            }
            link_one(&link, target).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), Path::new(becomes));
        }
    }
}
