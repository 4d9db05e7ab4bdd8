//! Device nodes. Those of the GPUs have no driver, so opening one returns ENXIO.

use std::{
    fs::{self, OpenOptions, Permissions},
    io::{self, Read, Seek, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use anyhow::{Context, Result};
use nix::{
    errno::Errno,
    sys::stat::{Mode, SFlag, makedev, mknod},
};
use serde::Deserialize;

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

/// The major of the GPUs and of the control device.
pub const GPU_MAJOR: u64 = 195;
/// The major of nvidia-uvm. The kernel assigns a free major to the real one; this is the major of the virtual consoles'
/// memory, because its minors 0 and 1 can be opened on any Linux with virtual consoles, and opening them has no effect.
pub const UVM_MAJOR: u64 = 7;
/// The major of the capabilities that MIG devices need. It has no driver.
const CAPS_MAJOR: u64 = 508;

const DRIVERS: [(u64, &str); 5] = [
    (GPU_MAJOR, "nvidia"),
    (GPU_MAJOR, "nvidia-modeset"),
    (GPU_MAJOR, "nvidiactl"),
    (UVM_MAJOR, "nvidia-uvm"),
    (CAPS_MAJOR, "nvidia-caps"),
];

/// The file in the stand-in's folder.
pub const FILE: &str = "proc-devices";

const SECTION: &str = "Character devices:\n";

/// Lists the driver's majors in the file, or removes them from it. The file is mounted over `/proc/devices`.
pub fn list(standin: &Path, is_loaded: bool) -> io::Result<()> {
    rewrite(&standin.join(FILE), |old| listing(old, is_loaded))
}

/// Rewrites a file in place, because it is mounted somewhere, or locked.
pub fn rewrite(path: &Path, text: impl FnOnce(&str) -> String) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let mut old = String::new();
    file.read_to_string(&mut old)?;
    let new = text(&old);
    file.rewind()?;
    file.write_all(new.as_bytes())?;
    file.set_len(u64::try_from(new.len()).unwrap_or(u64::MAX))
}

/// Returns the text of `/proc/devices` with the driver's majors, or without them.
pub fn listing(text: &str, is_loaded: bool) -> String {
    let is_ours = |line: &str| line.split_whitespace().nth(1).is_some_and(|name| name.starts_with("nvidia"));
    let mut lines: String = text.lines().filter(|line| !is_ours(line)).flat_map(|line| [line, "\n"]).collect();
    if !lines.contains(SECTION) {
        lines.insert_str(0, &format!("{SECTION}\nBlock devices:\n"));
    }
    if is_loaded {
        let end = lines.find("\n\n").map_or(lines.len(), |end| end + 1);
        for (major, name) in DRIVERS.iter().rev() {
            lines.insert_str(end, &format!("{major:>3} {name}\n"));
        }
    }
    lines
}
