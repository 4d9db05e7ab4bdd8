//! A fake host for the probe: a folder with the files that it reads on a machine with eight GPUs and a driver. Its NVML is the
//! stand-in library.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use cluster::standin::{Gpu, Standin};
use serde_json::{Value, json};

/// The number of its GPUs.
pub(super) const GPUS: u32 = 8;
const DRIVER: &str = "595.91.07";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The folder that the stand-in library reads and that the links in sysfs point to.
const STANDIN: &str = "etc/standin";

pub(super) struct FakeHost {
    root: PathBuf,
}

impl FakeHost {
    /// Creates a host with the root `root`, with `library` as its NVML, and with busy and healthy GPUs.
    pub(super) fn new(root: &Path, library: &Path) -> Result<Self> {
        for folder in ["proc/sys/kernel/random", "sys/bus/pci", "dev", LIBRARIES] {
            fs::create_dir_all(root.join(folder))?;
        }
        let standin = root.join(STANDIN);
        for folder in ["pci", "module", "lock"] {
            fs::create_dir_all(standin.join(folder))?;
        }
        symlink("/etc/standin/pci", root.join("sys/bus/pci/devices"))?;
        symlink("/etc/standin/module", root.join("sys/module"))?;
        fs::write(root.join("proc/sys/kernel/random/boot_id"), "11111111-2222-3333-4444-555555555555\n")?;
        fs::write(root.join("etc/os-release"), "ID=ubuntu\nVERSION_ID=\"22.04\"\n")?;
        fs::write(root.join("dev/nvidiactl"), "")?;
        let place = root.join(LIBRARIES).join(format!("libnvidia-ml.so.{DRIVER}"));
        fs::copy(library, place).with_context(|| format!("copying {} (run cargo build first)", library.display()))?;
        let host = Self { root: root.to_path_buf() };
        host.standin().set_module(Some(DRIVER))?;
        host.standin().plug(&gpus(&[], 0))?;
        Ok(host)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Makes the GPUs report these XIDs, evenly distributed, `per_second` in total.
    pub(super) fn flood(&self, xids: &[u16], per_second: u32) -> Result<()> {
        self.standin().set_gpus(&gpus(xids, per_second))
    }

    fn standin(&self) -> Standin {
        Standin::new(self.root.join(STANDIN))
    }
}

fn gpus(xids: &[u16], per_second: u32) -> Vec<Gpu> {
    let mut gpus = Gpu::h100(GPUS);
    let mut rates = split(per_second, gpus.len() * xids.len());
    for gpu in &mut gpus {
        let entries = xids.iter().zip(&mut rates).map(|(xid, rate)| json!({"xid": xid, "perSecond": rate})).collect();
        gpu.state.insert("xids".to_owned(), Value::Array(entries));
        gpu.state.insert("readings".to_owned(), readings());
    }
    gpus
}

/// Splits a number into parts that differ by at most one.
fn split(total: u32, parts: usize) -> impl Iterator<Item = u32> {
    let parts = u32::try_from(parts).unwrap_or(u32::MAX);
    (0..parts).map(move |part| total / parts + u32::from(part < total % parts))
}

/// Returns the readings of a busy and healthy GPU. All readings are present, so that the probe queries all of them.
fn readings() -> Value {
    json!({
        "thermal": {"gpu": 61, "memory": 70, "slowdownAt": 87, "shutdownAt": 92},
        "powerMilliwatts": 650_000, "powerLimitMilliwatts": 700_000, "energyMillijoules": 1_000_000_000,
        "smClockMhz": 1980, "memoryClockMhz": 2619, "clockReasons": 0, "performanceState": 0,
        "gpuUtilizationPercent": 97, "memoryUtilizationPercent": 40, "memoryUsedBytes": 64_000_000_000_u64,
        "ecc": {
            "enabled": true, "volatileCorrected": 0, "volatileUncorrected": 0,
            "aggregateCorrected": 3, "aggregateUncorrected": 0, "sramThresholdExceeded": false,
        },
        "rows": {"correctable": 1, "uncorrectable": 0, "pending": false, "failed": false},
        "nvlinks": vec![true; 18],
        "fabric": {"state": 3, "status": 0, "health": 1},
        "pcie": {"generation": 5, "maxGeneration": 5, "width": 16, "maxWidth": 16, "replays": 0},
        "mig": false, "computeMode": 0, "persistence": true, "recoveryAction": 0, "inforomCorrupt": false,
        "processes": 1,
    })
}

#[cfg(test)]
mod tests {
    use gpu_host::{
        nvml::readings::Readings,
        observe::{driver, os, pci},
        root::HostRoot,
    };
    use gpu_operator_crd::health::HealthState;
    use k8s_openapi::jiff::Timestamp;
    use nvml_probe::health::{
        gpu::{self, GpuObservation},
        rules::Rules,
    };

    use super::*;

    fn host() -> (tempfile::TempDir, FakeHost) {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("library");
        fs::write(&library, "x").unwrap();
        let host = FakeHost::new(&dir.path().join("host"), &library).unwrap();
        (dir, host)
    }

    #[test]
    fn the_probe_finds_eight_gpus_and_a_loaded_driver() {
        let (_dir, host) = host();
        let root = HostRoot::new(host.root());
        let gpus = pci::gpus(&root).unwrap();
        assert_eq!((gpus.len(), gpus[0].device_id.as_str()), (8, "2330"));
        assert_eq!(driver::loaded(&root).unwrap().as_deref(), Some(DRIVER));
        assert!(driver::load_id(&root).unwrap().is_some() && !driver::in_use(&root).unwrap());
        let installed = driver::all_libraries(&root, None).unwrap();
        assert_eq!((installed[0].root.as_str(), installed[0].version.as_str()), ("/", DRIVER));
        assert_eq!(os::release(&root).unwrap().version_id, "22.04");
        assert!(os::boot_id(&root).is_ok());
    }

    #[test]
    fn its_gpus_are_healthy_with_all_readings() {
        let readings: Readings = serde_json::from_value(readings()).unwrap();
        let mut gpu = gpu::Gpu::default();
        let read = GpuObservation::Read { readings: &readings, uuid: None, peer_nvlinks: Some(18) };
        for _ in 0..3 {
            gpu.step(&Rules::default(), &read, &[], Timestamp::UNIX_EPOCH);
        }
        assert_eq!(gpu.health().state, HealthState::Healthy, "{:?}", gpu.health());
    }

    #[test]
    fn a_flood_has_the_requested_rate_over_all_gpus_and_xids() {
        let (_dir, host) = host();
        host.flood(&[13, 31, 43], 1_000).unwrap();
        let text = fs::read_to_string(host.root().join("etc/standin/gpus.json")).unwrap();
        let machine: Value = serde_json::from_str(&text).unwrap();
        let rates: Vec<u64> = machine["devices"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|device| device["xids"].as_array().unwrap())
            .map(|entry| entry["perSecond"].as_u64().unwrap())
            .collect();
        assert_eq!((rates.len(), rates.iter().sum::<u64>()), (24, 1_000));
        assert!(rates.iter().all(|rate| (41..=42).contains(rate)), "{rates:?}");
    }
}
