//! What the node pretends to be: its GPUs, its PCI bus, its driver. All of it is files under `target/e2e/node/standin`,
//! which the stand-ins in the node read anew each time, so that a change takes effect at once.

mod pci;

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Map, Value, json};
use standin_node::driver::proc_devices;

use crate::module_users;

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// Where it sits, such as `0000:06:00.0`.
    pub pci_address: String,
    /// PCI device id and NVIDIA's vendor id in one, such as `0x233010DE`.
    pub pci_device_id: String,
    /// The product's name, such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// `GPU-` and a UUID.
    pub uuid: String,
    /// Memory in MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    /// N of the device node `/dev/nvidiaN`.
    pub minor: u32,
    /// Whether it works; one that does not reports an XID error.
    pub healthy: bool,
    /// What else NVML says of it: faults and readings, as the stand-in library's `gpus.json` has them.
    #[serde(flatten)]
    pub state: Map<String, Value>,
}

impl Gpu {
    /// `count` GPUs of one product, at addresses and with UUIDs that differ. `device` is the PCI device id, such as
    /// `0x2330`.
    #[must_use]
    pub fn several(count: u32, name: &str, device: u16, memory_mib: u64) -> Vec<Self> {
        let gpu = |minor| Self {
            pci_address: format!("0000:{:02x}:00.0", 6 + minor),
            pci_device_id: format!("0x{device:04X}10DE"),
            name: name.to_owned(),
            uuid: format!("GPU-00000000-0000-4000-8000-{device:04x}{minor:08x}"),
            memory_mib,
            minor,
            healthy: true,
            state: Map::new(),
        };
        (0..count).map(gpu).collect()
    }

    /// `count` H100.
    #[must_use]
    pub fn h100(count: u32) -> Vec<Self> {
        Self::several(count, "NVIDIA H100 80GB HBM3", 0x2330, 81_559)
    }
}

/// What the stand-in driver container does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "mode", rename_all = "kebab-case")]
pub enum DriverMode {
    /// Installs the driver.
    Ok,
    /// Waits with the installation.
    Hold,
    /// Fails, saying this.
    Crash {
        /// The last thing that the container writes.
        message: String,
    },
    /// Loads this version in place of its own.
    WrongVersion {
        /// The version.
        loads: String,
    },
}

/// The folder that steers the stand-ins.
#[derive(Clone, Debug)]
pub struct Standin {
    dir: PathBuf,
}

impl Standin {
    /// The stand-ins that this folder steers.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The folder itself; the node sees it at `/run/nvidia/standin`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Puts these GPUs, and no others, into the machine: on the PCI bus and into NVML.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn plug(&self, gpus: &[Gpu]) -> Result<()> {
        self.set_pci(gpus)?;
        self.set_gpus(gpus)
    }

    /// What NVML lists, whatever the PCI bus says: a GPU that fell off the bus is in one of them only.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set_gpus(&self, gpus: &[Gpu]) -> Result<()> {
        self.set_nvml(gpus, &Map::new())
    }

    /// Like [`Standin::set_gpus`]; with what is the matter with NVML as a whole, such as `hang`, as the stand-in library's
    /// `gpus.json` has it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set_nvml(&self, gpus: &[Gpu], faults: &Map<String, Value>) -> Result<()> {
        let mut machine = json!({"cuda": "13.1", "devices": gpus});
        for (fault, value) in faults {
            machine[fault] = value.clone();
        }
        self.replace("gpus.json", &machine.to_string())?;
        // What containers have of it that NVIDIA's own programs have given the driver.
        let lock = self.dir.join(module_users::LOCK);
        fs::create_dir_all(lock.parent().unwrap_or(&self.dir))?;
        proc_devices::rewrite(&lock, |_| machine.to_string()).with_context(|| format!("writing {}", lock.display()))
    }

    /// What sits on the PCI bus.
    ///
    /// # Errors
    /// If the files cannot be written.
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

    /// What the stand-in driver container does from now on.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set_driver_mode(&self, mode: &DriverMode) -> Result<()> {
        self.replace("driver.json", &serde_json::to_string(mode)?)
    }

    /// The version of the driver that is "loaded"; none if none is.
    #[must_use]
    pub fn loaded_driver(&self) -> Option<String> {
        let version = fs::read_to_string(self.dir.join("module/nvidia/version")).ok()?;
        Some(version.trim().to_owned())
    }

    /// Returns how often stand-ins have loaded a driver since [`Standin::forget_loads`]. A driver that is kept across a
    /// restart of its container is not loaded again.
    ///
    /// # Errors
    /// If their record cannot be read.
    pub fn loads(&self) -> Result<usize> {
        match fs::read_to_string(self.dir.join("loads")) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            record => Ok(record.context("reading the record of loads")?.lines().count()),
        }
    }

    /// Begins to count loads from zero.
    ///
    /// # Errors
    /// If the record cannot be removed.
    pub fn forget_loads(&self) -> Result<()> {
        match fs::remove_file(self.dir.join("loads")) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context("removing the record of loads"),
            _ => Ok(()),
        }
    }

    /// Makes so many programs hold the module that are no users of NVML. Those that have NVML open are counted beside them.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set_other_users(&self, count: usize) -> Result<()> {
        self.replace(module_users::OTHERS, &format!("{count}\n"))
    }

    /// "Loads" a driver that the host brought itself, or with none unloads whatever is loaded.
    pub(crate) fn set_module(&self, version: Option<&str>) -> Result<()> {
        let module = self.dir.join("module/nvidia");
        match fs::remove_dir_all(&module) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context("unloading the driver"),
            _ => {}
        }
        proc_devices::list(&self.dir, version.is_some()).context("listing the driver's majors")?;
        if let Some(version) = version {
            // It appears whole, as the kernel's do.
            let loading = self.dir.join(".loading-host");
            fs::create_dir_all(loading.join("holders"))?;
            fs::write(loading.join("version"), format!("{version}\n"))?;
            fs::write(loading.join("refcnt"), "0\n")?;
            fs::rename(loading, module)?;
        }
        Ok(())
    }

    /// A reader sees the old content or the new, never half of one.
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
    fn a_gpu_that_is_pulled_is_gone_from_the_bus() {
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
    fn the_drivers_mode_is_written_as_the_stand_in_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let standin = Standin::new(dir.path().into());
        standin.set_driver_mode(&DriverMode::WrongVersion { loads: "1.2.3".into() }).unwrap();
        let text = fs::read_to_string(dir.path().join("driver.json")).unwrap();
        assert_eq!(text, r#"{"mode":"wrong-version","loads":"1.2.3"}"#);
    }

    #[test]
    fn loads_are_counted_since_they_were_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let standin = Standin::new(dir.path().into());
        assert_eq!(standin.loads().unwrap(), 0);
        fs::write(dir.path().join("loads"), "595.91.07 1\n595.91.07 2\n").unwrap();
        assert_eq!(standin.loads().unwrap(), 2);
        standin.forget_loads().unwrap();
        standin.forget_loads().unwrap();
        assert_eq!(standin.loads().unwrap(), 0);
    }

    #[test]
    fn a_host_driver_loads_and_unloads() {
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
