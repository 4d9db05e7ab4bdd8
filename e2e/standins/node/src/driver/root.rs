//! Making the container's root filesystem visible on the node.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// The driver's lock file, which also contains the data for its library.
const LOCK: &str = "etc/standin/lock/nvml.lock";
/// The maximum number of mounts on one mount point, more than crashed containers can leave.
const MAX_LAYERS: usize = 64;

/// Mounts the harness's folder in the container's root.
pub(super) fn bind_standin(standin: &Path, etc: &Path) -> Result<()> {
    // The root of a container with a shared mount is shared with the runtime's copy of it on the node. Mounts of this
    // container must not reach that copy, where they would be left behind. The mount of /run/nvidia stays shared.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_PRIVATE, None::<&str>).context("making / private")?;
    fs::create_dir_all(etc).with_context(|| etc.display().to_string())?;
    bind(standin, etc, MsFlags::empty())
}

/// Makes `own_root` visible under `driver_root` as NVIDIA's script does: by a recursive bind, except for what is mounted
/// below `/sys`. In a container, the bind includes `/run/nvidia` itself, unless that is unbindable.
///
/// `kernel` is the file that the driver's library reads next to itself where the harness's folder does not exist.
pub(super) fn show(own_root: &Path, driver_root: &Path, kernel: &Path) -> Result<()> {
    let (sys, kernel) = (own_root.join("sys"), own_root.join(kernel));
    if !is_mounted(&kernel)? {
        bind(&own_root.join(LOCK), &kernel, MsFlags::empty())?;
    }
    if is_mounted(&sys)? {
        for flags in [MsFlags::MS_UNBINDABLE | MsFlags::MS_REC, MsFlags::MS_PRIVATE] {
            mount(None::<&str>, &sys, None::<&str>, flags, None::<&str>).context("changing the propagation of /sys")?;
        }
    }
    fs::create_dir_all(driver_root).with_context(|| driver_root.display().to_string())?;
    bind(own_root, driver_root, MsFlags::MS_REC)
}

/// Unmounts everything that is mounted on `place` and below, even if it is in use, as `umount -l -R` does. Succeeds if
/// nothing is mounted there.
pub(super) fn release(place: &Path) -> Result<()> {
    for _ in 0..MAX_LAYERS {
        if !is_mounted(place)? {
            return Ok(());
        }
        umount2(place, MntFlags::MNT_DETACH).with_context(|| format!("unmounting {}", place.display()))?;
    }
    bail!("{} is still mounted", place.display())
}

fn bind(from: &Path, to: &Path, flags: MsFlags) -> Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | flags, None::<&str>)
        .with_context(|| format!("mounting {} on {}", from.display(), to.display()))
}

fn is_mounted(place: &Path) -> Result<bool> {
    let table = fs::read("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
    Ok(mount_points(&table).any(|point| point == place))
}

fn mount_points(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    let point = |line: &[u8]| line.split(|byte| *byte == b' ').nth(4).map(unescape);
    table.split(|byte| *byte == b'\n').filter_map(point).collect::<Vec<_>>().into_iter()
}

/// Decodes a path: the kernel writes spaces and similar characters as a backslash and three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, behind)) = rest.split_first() {
        let digits = behind.get(..3).and_then(|digits| str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) if *byte == b'\\' => {
                plain.push(escaped);
                rest = behind.get(3..).unwrap_or_default();
            }
            _ => {
                plain.push(*byte);
                rest = behind;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_with_a_space_is_recognised() {
        let table =
            b"36 35 98:0 / /mnt/my\\040disk\\134x rw,noatime shared:1 - ext3 /dev/root rw\n37 1 0:1 / / rw - x y z\n";
        let points: Vec<PathBuf> = mount_points(table).collect();
        assert_eq!(points, [PathBuf::from("/mnt/my disk\\x"), PathBuf::from("/")]);
    }
}
