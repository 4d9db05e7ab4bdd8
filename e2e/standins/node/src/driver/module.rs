//! The "kernel module": a folder as the kernel shows a loaded one under `/sys/module`.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// The module `nvidia`, loaded or not.
#[derive(Debug)]
pub(super) struct Module {
    folder: PathBuf,
    loading: PathBuf,
    lock: PathBuf,
}

impl Module {
    pub(super) fn new(standin: &Path) -> Self {
        Self {
            folder: standin.join("module/nvidia"),
            loading: standin.join(".loading"),
            lock: standin.join("lock/nvml.lock"),
        }
    }

    /// The version of the loaded module.
    pub(super) fn version(&self) -> Option<String> {
        fs::read_to_string(self.folder.join("version")).ok().map(|text| text.trim().to_owned())
    }

    /// Loads the module: it appears whole, as the kernel's do.
    pub(super) fn load(&self, version: &str) -> Result<()> {
        let what = || format!("loading driver {version}");
        remove(&self.loading).with_context(what)?;
        fs::create_dir_all(self.loading.join("holders")).with_context(what)?;
        fs::write(self.loading.join("version"), format!("{version}\n")).with_context(what)?;
        fs::write(self.loading.join("refcnt"), "0\n").with_context(what)?;
        if let Some(above) = self.folder.parent() {
            fs::create_dir_all(above).with_context(what)?;
        }
        // Users find the lock there, even those who see the folder read-only.
        self.open_lock().with_context(what)?;
        fs::rename(&self.loading, &self.folder).with_context(what)
    }

    /// Unloads the module, or answers false if something uses it.
    pub(super) fn unload(&self) -> Result<bool> {
        let what = "unloading the driver";
        let lock = self.open_lock().context(what)?;
        // Held until the module is gone, so that nobody can begin to use it meanwhile.
        if lock.try_lock().is_err() || self.users() > 0 {
            return Ok(false);
        }
        // As one step, since who sees half a module sees nonsense.
        remove(&self.loading).context(what)?;
        match fs::rename(&self.folder, &self.loading) {
            Ok(()) => remove(&self.loading).context(what)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(what),
        }
        Ok(true)
    }

    /// References to the module beyond those of the modules above it.
    fn users(&self) -> usize {
        let count = fs::read_to_string(self.folder.join("refcnt")).ok().and_then(|text| text.trim().parse().ok());
        let holders = fs::read_dir(self.folder.join("holders")).map_or(0, Iterator::count);
        count.unwrap_or(0_usize).saturating_sub(holders)
    }

    fn open_lock(&self) -> io::Result<File> {
        if let Some(above) = self.lock.parent() {
            fs::create_dir_all(above)?;
        }
        OpenOptions::new().read(true).append(true).create(true).open(&self.lock)
    }
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_unloaded_only_when_nobody_uses_it() {
        let folder = tempfile::tempdir().unwrap();
        let module = Module::new(folder.path());
        module.load("1.2").unwrap();
        assert_eq!(module.version().as_deref(), Some("1.2"));

        let user = File::open(folder.path().join("lock/nvml.lock")).unwrap();
        user.try_lock_shared().unwrap();
        assert!(!module.unload().unwrap());
        drop(user);

        fs::write(folder.path().join("module/nvidia/refcnt"), "2\n").unwrap();
        fs::create_dir(folder.path().join("module/nvidia/holders/nvidia_uvm")).unwrap();
        assert!(!module.unload().unwrap());
        assert_eq!(module.version().as_deref(), Some("1.2"));

        fs::create_dir(folder.path().join("module/nvidia/holders/nvidia_modeset")).unwrap();
        assert!(module.unload().unwrap());
        assert_eq!(module.version(), None);
        assert!(module.unload().unwrap());
    }
}
