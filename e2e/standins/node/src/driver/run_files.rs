//! The files of driver containers under `/run/nvidia`: the lock of the running container, and the state file.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

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
