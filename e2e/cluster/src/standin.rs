//! The stand-ins for GPUs, driver and NVML, as the harness and the tests control them.
//!
//! The stand-ins read the files of their folder again each time, so that a change takes effect at once.

pub mod module_references;
pub mod unanswered;

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
use standin_node::driver::devices;

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
        devices::rewrite(&lock, |_| machine.to_string()).with_context(|| format!("writing {}", lock.display()))
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
            write_device(&bus.join(&gpu.pci_address), gpu)?;
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
        devices::list(&self.dir, version.is_some()).context("listing the driver's majors")?;
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

/// One GPU, as the stand-in NVML library reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// The PCI address, such as `0000:06:00.0`.
    pub pci_address: String,
    /// The PCI device id followed by NVIDIA's vendor id, such as `0x233010DE`.
    pub pci_device_id: String,
    /// The product's name, such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// `GPU-` followed by a UUID.
    pub uuid: String,
    /// The memory, in MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    /// The number N of the device node `/dev/nvidiaN`.
    pub minor: u32,
    /// Whether it works. An unhealthy GPU reports an XID error.
    pub healthy: bool,
    /// Further fields of the GPU in the stand-in library's `gpus.json`: faults and readings.
    #[serde(flatten)]
    pub state: Map<String, Value>,
}

impl Gpu {
    /// Returns `count` GPUs of one product, each with its own address and UUID. `device` is the PCI device id, such as
    /// `0x2330`.
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

    /// Returns `count` H100 GPUs.
    pub fn h100(count: u32) -> Vec<Self> {
        Self::several(count, "NVIDIA H100 80GB HBM3", 0x2330, 81_559)
    }
}

/// The PCI classes of GPUs with display outputs and of GPUs without.
const VGA: &str = "0x030000";
const COMPUTE: &str = "0x030200";
/// Memory regions of a device: one of 16 MiB, and twelve empty ones.
const FIRST_REGION: &str = "0x00000000f0000000 0x00000000f0ffffff 0x0000000000040200\n";
const EMPTY_REGION: &str = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
/// The size of the configuration space in bytes. It starts with the ids of vendor and device.
const CONFIG_SPACE: usize = 256;

/// Writes the files of a GPU to its folder.
fn write_device(place: &Path, gpu: &Gpu) -> Result<()> {
    let id = gpu.pci_device_id.trim_start_matches("0x").to_lowercase();
    let (device, vendor) = id.split_at_checked(4).context("the PCI id does not have eight digits")?;
    let has_display = ["Quadro", "GeForce"].iter().any(|brand| gpu.name.contains(brand));
    fs::create_dir_all(place)?;
    for (file, content) in [
        ("vendor", format!("0x{vendor}\n")),
        ("device", format!("0x{device}\n")),
        ("class", format!("{}\n", if has_display { VGA } else { COMPUTE })),
        ("numa_node", "-1\n".to_owned()),
        ("resource", FIRST_REGION.to_owned() + &EMPTY_REGION.repeat(12)),
    ] {
        fs::write(place.join(file), content)?;
    }
    let mut config = vec![0; CONFIG_SPACE];
    for (bytes, number) in config.chunks_exact_mut(2).zip([vendor, device]) {
        bytes.copy_from_slice(&u16::from_str_radix(number, 16).context("invalid PCI id")?.to_le_bytes());
    }
    fs::write(place.join("config"), config)?;
    Ok(())
}
