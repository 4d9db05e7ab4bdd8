//! The folder that controls a node's stand-ins: GPUs, PCI bus and driver. The stand-ins read its files again each time, so
//! that a change takes effect at once.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use harness::files::{ignore_missing, remove_tree};
use serde::Serialize;
use serde_json::{Map, Value, json};
use standin_node::driver::proc_devices;

use super::{gpu::Gpu, module_references, pci};

/// The behaviour of the stand-in driver container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "mode", rename_all = "kebab-case")]
pub enum DriverMode {
    /// Installs the driver.
    Ok,
    /// Does not begin the installation.
    Hold,
    /// Fails with a message.
    Crash {
        /// The last line that the container writes.
        message: String,
    },
    /// Loads another version than its own.
    WrongVersion {
        /// The version that it loads.
        loads: String,
    },
}

/// The folder that controls the stand-ins of one node.
#[derive(Clone, Debug)]
pub struct Standin {
    dir: PathBuf,
}

impl Standin {
    /// Returns a handle on a folder.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Returns the folder. The node mounts it at [`standin_node::FOLDER`].
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Sets the GPUs of the machine, both on the PCI bus and in NVML.
    pub fn plug(&self, gpus: &[Gpu]) -> Result<()> {
        self.set_pci(gpus)?;
        self.set_gpus(gpus)
    }

    /// Sets the GPUs that NVML lists, and leaves the PCI bus as it is: a GPU that fell off the bus is in one of them only.
    pub fn set_gpus(&self, gpus: &[Gpu]) -> Result<()> {
        self.set_nvml(gpus, &Map::new())
    }

    /// Sets the GPUs that NVML lists, and faults of NVML as a whole, such as `hang`: top-level fields of the stand-in
    /// library's `gpus.json`.
    pub fn set_nvml(&self, gpus: &[Gpu], faults: &Map<String, Value>) -> Result<()> {
        let mut machine = json!({"cuda": "13.1", "devices": gpus});
        for (fault, value) in faults {
            machine[fault] = value.clone();
        }
        self.replace("gpus.json", &machine.to_string())?;
        // Containers to which NVIDIA's own programs have added the driver see only this file.
        let lock = self.dir.join(module_references::LOCK);
        fs::create_dir_all(lock.parent().unwrap_or(&self.dir))?;
        proc_devices::rewrite(&lock, |_| machine.to_string()).with_context(|| format!("writing {}", lock.display()))
    }

    /// Sets the GPUs on the PCI bus, and leaves NVML as it is.
    pub fn set_pci(&self, gpus: &[Gpu]) -> Result<()> {
        let bus = self.dir.join("pci");
        fs::create_dir_all(&bus)?;
        for entry in fs::read_dir(&bus)? {
            let entry = entry?;
            let name = entry.file_name();
            if !gpus.iter().any(|gpu| *gpu.pci_address == *name) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        for gpu in gpus {
            pci::write(&bus.join(&gpu.pci_address), gpu)?;
        }
        Ok(())
    }

    /// Binds a device on the PCI bus to a kernel driver, such as `vfio-pci`, or to none.
    pub fn bind(&self, address: &str, driver: Option<&str>) -> Result<()> {
        let link = self.dir.join("pci").join(address).join("driver");
        fs::remove_file(&link).or_else(ignore_missing).context("unbinding a device")?;
        let Some(driver) = driver else { return Ok(()) };
        symlink(format!("../../../bus/pci/drivers/{driver}"), link).context("binding a device")
    }

    /// Sets the behaviour of the stand-in driver container from now on.
    pub fn set_driver_mode(&self, mode: &DriverMode) -> Result<()> {
        self.replace("driver.json", &serde_json::to_string(mode)?)
    }

    /// Returns the version of the "loaded" driver, if one is loaded.
    pub fn loaded_driver(&self) -> Option<String> {
        let version = fs::read_to_string(self.dir.join("module/nvidia/version")).ok()?;
        Some(version.trim().to_owned())
    }

    /// Returns how often stand-ins have loaded a driver since [`Standin::reset_loads`]. A driver that is kept across a
    /// restart of its container is not loaded again.
    pub fn loads(&self) -> Result<usize> {
        match fs::read_to_string(self.dir.join("loads")) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            record => Ok(record.context("reading the record of loads")?.lines().count()),
        }
    }

    /// Resets the count of loads to zero.
    pub fn reset_loads(&self) -> Result<()> {
        fs::remove_file(self.dir.join("loads")).or_else(ignore_missing).context("removing the record of loads")
    }

    /// Sets the number of references to the module that do not come from NVML. Programs that have NVML open count in addition.
    pub fn set_other_references(&self, count: usize) -> Result<()> {
        self.replace(module_references::OTHER_REFERENCES, &format!("{count}\n"))
    }

    /// "Loads" the host's own driver; `None` unloads any driver.
    pub fn set_module(&self, version: Option<&str>) -> Result<()> {
        let module = self.dir.join("module/nvidia");
        remove_tree(&module).context("unloading the driver")?;
        proc_devices::list(&self.dir, version.is_some()).context("listing the driver's majors")?;
        if let Some(version) = version {
            // The module's folder appears in one step, as in the kernel.
            let loading = self.dir.join(".loading-host");
            fs::create_dir_all(loading.join("holders"))?;
            fs::write(loading.join("version"), format!("{version}\n"))?;
            fs::write(loading.join("refcnt"), "0\n")?;
            fs::rename(loading, module)?;
        }
        Ok(())
    }

    /// Replaces a file in one step: readers see either the old or the new content.
    fn replace(&self, name: &str, content: &str) -> Result<()> {
        let new = self.dir.join(format!(".{name}.new"));
        fs::write(&new, content).with_context(|| format!("writing {name}"))?;
        fs::rename(new, self.dir.join(name)).with_context(|| format!("writing {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_gpu_disappears_from_the_bus() {
        let dir = tempfile::tempdir().unwrap();
        let standin = Standin::new(dir.path().into());
        standin.plug(&Gpu::h100(2)).unwrap();
        let device = dir.path().join("pci/0000:07:00.0/device");
        assert_eq!(fs::read_to_string(&device).unwrap(), "0x2330\n");
        standin.plug(&Gpu::h100(1)).unwrap();
        assert!(!device.exists());
        assert!(dir.path().join("pci/0000:06:00.0/vendor").exists());
    }

    #[test]
    fn the_driver_mode_has_the_format_that_the_stand_in_reads() {
        let dir = tempfile::tempdir().unwrap();
        let standin = Standin::new(dir.path().into());
        standin.set_driver_mode(&DriverMode::WrongVersion { loads: "1.2.3".into() }).unwrap();
        let text = fs::read_to_string(dir.path().join("driver.json")).unwrap();
        assert_eq!(text, r#"{"mode":"wrong-version","loads":"1.2.3"}"#);
    }

    #[test]
    fn loads_are_counted_since_the_last_reset() {
        let dir = tempfile::tempdir().unwrap();
        let standin = Standin::new(dir.path().into());
        assert_eq!(standin.loads().unwrap(), 0);
        fs::write(dir.path().join("loads"), "595.91.07 1\n595.91.07 2\n").unwrap();
        assert_eq!(standin.loads().unwrap(), 2);
        standin.reset_loads().unwrap();
        standin.reset_loads().unwrap();
        assert_eq!(standin.loads().unwrap(), 0);
    }

    #[test]
    fn a_host_driver_can_be_loaded_and_unloaded() {
        let dir = tempfile::tempdir().unwrap();
        let standin = Standin::new(dir.path().into());
        fs::create_dir_all(dir.path().join("module")).unwrap();
        assert_eq!(standin.loaded_driver(), None);
        standin.set_module(Some("580.173.02")).unwrap();
        assert_eq!(standin.loaded_driver().as_deref(), Some("580.173.02"));
        let majors = || fs::read_to_string(dir.path().join(proc_devices::FILE)).unwrap().contains("nvidia-uvm");
        assert!(majors());
        standin.set_module(None).unwrap();
        assert_eq!(standin.loaded_driver(), None);
        assert!(!majors());
    }
}
