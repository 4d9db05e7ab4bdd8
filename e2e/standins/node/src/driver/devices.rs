//! Device nodes. Those of the GPUs have no driver, so opening one returns ENXIO.

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

use super::proc_devices::{GPU_MAJOR, UVM_MAJOR};

const CONTROL_MINOR: u64 = 255;

#[derive(Deserialize)]
struct Machine {
    #[serde(default)]
    devices: Vec<Gpu>,
}

#[derive(Deserialize)]
struct Gpu {
    minor: u64,
}

/// Creates missing device nodes of the GPUs in `gpus.json`. A driver container creates no others, because its
/// persistence daemon needs no others.
pub(super) fn make(standin: &Path, dev: &Path) -> Result<()> {
    node(&dev.join("nvidiactl"), GPU_MAJOR, CONTROL_MINOR)?;
    // A file that is missing or being written is read at the next check.
    let machine: Option<Machine> =
        fs::read(standin.join("gpus.json")).ok().and_then(|text| serde_json::from_slice(&text).ok());
    for gpu in machine.iter().flat_map(|machine| &machine.devices) {
        node(&dev.join(format!("nvidia{}", gpu.minor)), GPU_MAJOR, gpu.minor)?;
    }
    Ok(())
}

/// Creates the device nodes of nvidia-uvm, as Google's installer does.
pub(super) fn make_uvm(dev: &Path) -> Result<()> {
    node(&dev.join("nvidia-uvm"), UVM_MAJOR, 0)?;
    node(&dev.join("nvidia-uvm-tools"), UVM_MAJOR, 1)
}

fn node(path: &Path, major: u64, minor: u64) -> Result<()> {
    match mknod(path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(major, minor)) {
        // The umask has removed bits from the mode given to mknod.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o666)),
        // It was created before, or is one of the host's devices.
        Err(Errno::EEXIST) => Ok(()),
        Err(error) => Err(io::Error::from(error)),
    }
    .with_context(|| format!("creating {}", path.display()))
}
