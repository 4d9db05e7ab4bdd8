//! Making the container's root filesystem visible on the node.
//!
//! The driver's libraries and programs are not part of the image's own root: an installer writes them to the container's writable layer, and they
//! disappear when the container is removed, even if its root is still mounted elsewhere.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::{ffi::OsStrExt, fs::symlink},
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

/// The folder in the image with the files to install.
const PACKAGE: &str = "drivers";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const PROGRAMS: &str = "usr/bin";

/// Installs the libraries and programs of driver `version` into the container's root.
pub(super) fn install(own_root: &Path, version: &str) -> Result<()> {
    let package = own_root.join(PACKAGE);
    let library = package.join("libstandin_nvml.so");
    let folder = own_root.join(LIBRARIES);
    // Containers with a GPU also get a libcuda; its content does not matter here.
    for name in ["libnvidia-ml.so", "libcuda.so"] {
        let file = format!("{name}.{version}");
        copy(&library, &folder.join(&file))?;
        let link = folder.join(format!("{name}.1"));
        remove(&link)?;
        symlink(&file, &link).with_context(|| format!("linking {}", link.display()))?;
    }
    // `root::show` mounts a file over it, or has done so.
    let kernel = File::options().append(true).create(true).open(own_root.join(kernel(version)));
    kernel.context("creating the stand-in's kernel file")?;
    copy(&package.join("nvidia-smi"), &own_root.join(PROGRAMS).join("nvidia-smi"))
}

/// The file that the library of driver `version` reads next to itself in containers, instead of the harness's folder.
pub(super) fn kernel(version: &str) -> PathBuf {
    Path::new(LIBRARIES).join(format!("libnvidia-standin.so.{version}"))
}

/// Copies a file. Programs may have the old file open, so it is replaced instead of written to.
fn copy(from: &Path, to: &PathBuf) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    remove(to)?;
    fs::copy(from, to).map(drop).with_context(|| format!("copying {} to {}", from.display(), to.display()))
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).with_context(|| file.display().to_string()),
        _ => Ok(()),
    }
}

/// The lock of the running container. The kernel releases it when the process ends.
pub(super) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Takes the lock, and writes the id of this process into its file.
    pub(super) fn take(run: &Path) -> Result<Self> {
        fs::create_dir_all(run).with_context(|| run.display().to_string())?;
        let path = run.join("nvidia-driver.pid");
        let what = || path.display().to_string();
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).with_context(what)?;
        match file.try_lock() {
            Ok(()) => writeln!(file, "{}", std::process::id()).with_context(what)?,
            Err(TryLockError::WouldBlock) => bail!("An instance of the NVIDIA driver is already running, aborting"),
            Err(TryLockError::Error(error)) => return Err(error).with_context(what),
        }
        Ok(Self { path, _file: file })
    }

    /// Removes the file, as a container does after it has unloaded its driver.
    pub(super) fn remove(&self) -> Result<()> {
        absent_is_fine(fs::remove_file(&self.path)).with_context(|| self.path.display().to_string())
    }
}

fn state_file(run: &Path) -> PathBuf {
    run.join("nvidia-driver.state")
}

/// Reads the digest that the last container recorded.
pub(super) fn recorded_digest(run: &Path) -> Option<String> {
    fs::read_to_string(state_file(run)).ok()
}

/// Records the digest of the configuration with which the driver was loaded. An empty digest becomes an empty line.
pub(super) fn record_digest(run: &Path, digest: &str) -> Result<()> {
    let path = state_file(run);
    fs::write(&path, format!("{digest}\n")).with_context(|| path.display().to_string())
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
