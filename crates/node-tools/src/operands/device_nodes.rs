//! The device nodes that programs open in addition to those of the GPUs. NVIDIA's driver container creates the nodes of
//! the GPUs. It also loads the modules behind the other nodes, but does not create those nodes: CUDA fails without
//! `nvidia-uvm`, and a CDI specification written before the nodes exist omits them.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use gpu_host::{
    observe::{
        device_nodes::{Device, wanted},
        driver::{self, CONTAINER_ROOT},
    },
    process::error_chain,
    root::HostRoot,
};
use nix::sys::stat::{Mode, SFlag, major, makedev, minor, mknod};
use tokio::time::sleep;

/// Where systemd looks up a device by its numbers when a container is given access to it.
const BY_NUMBER: &str = "/dev/char";

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

/// Creates the nodes under the root of the driver's container whenever its driver is loaded and its root is mounted.
/// Failures are logged once and retried at the next check. `own` is this process' own root: the kernel shows the MIG
/// capabilities in every container's `/proc`, and the host's cannot be mounted before they exist.
pub async fn keep(host: &HostRoot, own: &HostRoot, interval: Duration) {
    let mut last = String::new();
    loop {
        let message = match make(host, own) {
            Ok(made) if made.is_empty() => String::new(),
            Ok(made) => format!("created {}", made.join(", ")),
            Err(error) => error_chain(&error),
        };
        if !message.is_empty() && message != last {
            tracing::info!("{message}");
        }
        last = message;
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
    for device in wanted(host, own) {
        if node(&dev, &device)? {
            made.push(device.name.clone());
        }
    }
    link_all(host, &dev)?;
    Ok(made)
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

    #[test]
    fn a_link_into_the_container_is_replaced_one_of_the_host_stays() {
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
