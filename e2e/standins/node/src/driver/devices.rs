//! Device nodes. No driver stands behind them, which is why opening one answers ENXIO.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::Path,
};

use anyhow::{Context, Result};
use nix::{
    errno::Errno,
    sys::stat::{Mode, SFlag, makedev, mknod},
};
use serde::Deserialize;

/// The majors that NVIDIA's driver uses; the one of nvidia-uvm is dynamic there.
const MAJOR: u64 = 195;
const CONTROL_MINOR: u64 = 255;
const UVM_MAJOR: u64 = 510;

#[derive(Deserialize)]
struct Machine {
    #[serde(default)]
    devices: Vec<Gpu>,
}

#[derive(Deserialize)]
struct Gpu {
    minor: u64,
}

/// Makes the nodes of the GPUs in `gpus.json` that are not there yet.
pub(super) fn make(standin: &Path, dev: &Path) -> Result<()> {
    node(&dev.join("nvidiactl"), MAJOR, CONTROL_MINOR)?;
    node(&dev.join("nvidia-uvm"), UVM_MAJOR, 0)?;
    // A file that is missing or being written: the next look finds it.
    let machine: Option<Machine> =
        fs::read(standin.join("gpus.json")).ok().and_then(|text| serde_json::from_slice(&text).ok());
    for gpu in machine.iter().flat_map(|machine| &machine.devices) {
        node(&dev.join(format!("nvidia{}", gpu.minor)), MAJOR, gpu.minor)?;
    }
    Ok(())
}

fn node(path: &Path, major: u64, minor: u64) -> Result<()> {
    match mknod(path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(major, minor)) {
        // What mknod was asked for is cut by the umask.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o666)),
        // Made before, or handed in with the host's other devices.
        Err(Errno::EEXIST) => Ok(()),
        Err(error) => Err(io::Error::from(error)),
    }
    .with_context(|| format!("making {}", path.display()))
}
