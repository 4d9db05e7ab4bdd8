//! The driver's libraries and programs, which are installed when the container starts.
//!
//! They are not part of the image's own root: an installer writes them to the container's writable layer, and they
//! disappear when the container is removed, even if its root is still mounted elsewhere.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

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
