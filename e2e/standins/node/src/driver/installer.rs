//! The stand-in for an installer that puts a driver on the host and exits. It has the environment, the cache and the
//! effects on the host of Google's installer for Ubuntu.

use std::{
    env, fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::{
    devices,
    kind::Kind,
    module::Module,
    steering::{Mode, Steering},
};
use crate::FOLDER;

/// The installer's folders and files.
#[derive(Clone, Debug)]
pub struct Folders {
    /// `NVIDIA_INSTALL_DIR_CONTAINER`, the host's folder for the driver.
    pub install: PathBuf,
    /// `ROOT_MOUNT_DIR`, the host's root.
    pub root: PathBuf,
    /// The library to install.
    pub library: PathBuf,
    /// The program to install beside it.
    pub program: PathBuf,
}

impl Folders {
    /// Returns the folders and files that the environment sets.
    pub fn from_env() -> Self {
        let path = |name, default: &str| PathBuf::from(env::var_os(name).unwrap_or_else(|| default.into()));
        Self {
            install: path("NVIDIA_INSTALL_DIR_CONTAINER", "/usr/local/nvidia"),
            root: path("ROOT_MOUNT_DIR", "/root"),
            library: path("STANDIN_LIBRARY", "/usr/lib/libstandin_nvml.so"),
            program: path("STANDIN_PROGRAM", "/usr/bin/nvidia-smi"),
        }
    }

    fn standin(&self) -> PathBuf {
        self.root.join(FOLDER.trim_start_matches('/'))
    }
}

/// Installs a version, unless the cache lists it as installed, and loads it.
pub fn install(folders: &Folders, version: &str) -> Result<()> {
    let standin = folders.standin();
    let steering = Steering::read(&standin)?;
    if steering.mode == Mode::Crash {
        bail!(steering.failure());
    }
    let version = steering.version(version)?;
    let cache = folders.install.join(".cache");
    if fs::read_to_string(&cache).is_ok_and(|cached| cached == version) {
        println!("Found cached version, NOT building the drivers.");
    } else {
        println!("installing driver {version}");
        libraries(&folders.library, &folders.install.join("lib64"), &version)?;
        program(&folders.program, &folders.install.join("bin"))?;
        fs::write(&cache, &version).context("writing the cache")?;
    }
    let module = Module::new(&standin);
    if module.version().as_ref() != Some(&version) {
        if !module.unload(Kind::Old)? {
            bail!("Could not unload NVIDIA driver kernel modules, driver is in use");
        }
        module.load(&version)?;
    }
    let dev = folders.root.join("dev");
    devices::make(&standin, &dev)?;
    devices::make_uvm(&dev)?;
    println!("Verifying Nvidia installation... DONE.");
    Ok(())
}

fn libraries(from: &Path, folder: &Path, version: &str) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for name in ["libnvidia-ml.so", "libcuda.so"] {
        let (file, link) = (folder.join(format!("{name}.{version}")), folder.join(format!("{name}.1")));
        // Programs may have the old file open, so it is replaced instead of written to.
        remove(&file)?;
        remove(&link)?;
        fs::copy(from, &file).with_context(|| format!("copying to {}", file.display()))?;
        symlink(format!("{name}.{version}"), &link).with_context(|| link.display().to_string())?;
    }
    Ok(())
}

fn program(from: &Path, folder: &Path) -> Result<()> {
    let file = folder.join("nvidia-smi");
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    remove(&file)?;
    fs::copy(from, &file).map(drop).with_context(|| format!("copying to {}", file.display()))
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).with_context(|| file.display().to_string()),
        _ => Ok(()),
    }
}
