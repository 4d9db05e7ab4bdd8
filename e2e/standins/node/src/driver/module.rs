//! The "kernel module": a folder like that of a loaded module under `/sys/module`.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};

use super::{devices, kind::Kind};

/// The modes that programs have set on GPUs. They are part of the driver's state.
const MODES: &str = "modes.json";

/// The module `nvidia`, loaded or not, and the modules that depend on it.
#[derive(Debug)]
pub(super) struct Module {
    standin: PathBuf,
    folder: PathBuf,
    loading: PathBuf,
    lock: PathBuf,
}

impl Module {
    pub(super) fn new(standin: &Path) -> Self {
        Self {
            standin: standin.to_path_buf(),
            folder: standin.join("module/nvidia"),
            loading: standin.join(".loading"),
            lock: standin.join("lock/nvml.lock"),
        }
    }

    /// Returns the version of the loaded module.
    pub(super) fn version(&self) -> Option<String> {
        fs::read_to_string(self.folder.join("version")).ok().map(|text| text.trim().to_owned())
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.references("nvidia").is_some()
    }

    /// Loads the module and counts the load. The module's folder appears in one step, as in the kernel.
    pub(super) fn load(&self, version: &str) -> Result<()> {
        let what = || format!("loading driver {version}");
        remove(&self.loading).with_context(what)?;
        fs::create_dir_all(self.loading.join("holders")).with_context(what)?;
        fs::write(self.loading.join("version"), format!("{version}\n")).with_context(what)?;
        fs::write(self.loading.join("refcnt"), "0\n").with_context(what)?;
        if let Some(above) = self.folder.parent() {
            fs::create_dir_all(above).with_context(what)?;
        }
        // The lock must exist before users open it, because some see the folder read-only.
        self.open_lock().with_context(what)?;
        self.count_load(version).with_context(what)?;
        // Before the module, so that a process that sees the module also sees its majors.
        devices::list(&self.standin, true).with_context(what)?;
        fs::rename(&self.loading, &self.folder).with_context(what)
    }

    /// Unloads the module and its dependants; returns false if they are in use by the rules of this kind of image.
    pub(super) fn unload(&self, kind: Kind) -> Result<bool> {
        let what = "unloading the driver";
        let Some(references) = self.references("nvidia") else { return Ok(true) };
        let lock = self.open_lock().context(what)?;
        let dependants: Vec<usize> = kind.dependants().iter().filter_map(|name| self.references(name)).collect();
        // Held until the module is unloaded, so that no program can begin to use it meanwhile.
        if lock.try_lock().is_err() || kind.is_in_use(references, &dependants) {
            return Ok(false);
        }
        for name in kind.dependants() {
            remove(&self.folder.with_file_name(name)).context(what)?;
        }
        // In one step, so that no process sees an incomplete module.
        remove(&self.loading).context(what)?;
        fs::rename(&self.folder, &self.loading).context(what)?;
        remove(&self.loading).context(what)?;
        match fs::remove_file(self.standin.join(MODES)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).context(what),
            _ => {}
        }
        devices::list(&self.standin, false).context(what)?;
        Ok(true)
    }

    /// Returns the reference count of the module with this name, if it is loaded.
    fn references(&self, name: &str) -> Option<usize> {
        let count = fs::read_to_string(self.folder.with_file_name(name).join("refcnt")).ok()?;
        Some(count.trim().parse().unwrap_or_default())
    }

    /// Adds a line to the file `loads`, which shows tests whether a driver was loaded again.
    fn count_load(&self, version: &str) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut file = OpenOptions::new().append(true).create(true).open(self.standin.join("loads"))?;
        writeln!(file, "{version} {now}")
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
    fn a_module_is_unloaded_only_when_it_is_not_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let module = Module::new(folder.path());
        assert!(module.unload(Kind::Current).unwrap(), "no module is loaded");
        module.load("1.2").unwrap();
        assert_eq!(module.version().as_deref(), Some("1.2"));

        let user = File::open(folder.path().join("lock/nvml.lock")).unwrap();
        user.try_lock_shared().unwrap();
        assert!(!module.unload(Kind::Current).unwrap());
        drop(user);

        let write = |name: &str, count: u32| {
            let place = folder.path().join("module").join(name);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("refcnt"), format!("{count}\n")).unwrap();
        };
        write("nvidia", 2);
        write("nvidia_uvm", 0);
        assert!(!module.unload(Kind::Current).unwrap());
        write("nvidia_drm", 0);
        assert!(!module.unload(Kind::Old).unwrap(), "an old image does not expect nvidia_drm");
        assert_eq!(module.version().as_deref(), Some("1.2"));

        assert!(module.unload(Kind::Precompiled).unwrap());
        assert_eq!(module.version(), None);
        assert!(!folder.path().join("module/nvidia_drm").exists());
    }
}
