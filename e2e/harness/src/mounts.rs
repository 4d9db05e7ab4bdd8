//! Mounts in a mount namespace of this process's own.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};

/// Mounts an empty file system in memory on a folder, which is created if needed.
pub fn tmpfs(place: &Path, options: &str) -> Result<()> {
    fs::create_dir_all(place)?;
    mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), Some(options))
        .with_context(|| format!("mounting a tmpfs on {}", place.display()))
}

/// Binds a folder, with its mounts, to another folder, which is created if needed.
pub fn bind(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .with_context(|| format!("binding {} to {}", from.display(), to.display()))
}

/// Binds a file over another file, which must exist.
pub fn bind_file(from: &Path, to: &Path) -> Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("binding {} to {}", from.display(), to.display()))
}

/// Makes all mounts private: later mounts and unmounts do not reach other namespaces.
pub fn make_private() -> Result<()> {
    set_propagation(MsFlags::MS_PRIVATE)
}

/// Makes all mounts shared: later mounts reach the namespaces that are created from this one.
pub fn make_shared() -> Result<()> {
    set_propagation(MsFlags::MS_SHARED)
}

fn set_propagation(kind: MsFlags) -> Result<()> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | kind, None::<&str>)
        .context("changing the propagation of mounts")
}
