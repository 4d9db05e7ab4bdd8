//! The GPUs, as reported by NVML.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context, Result, bail};
use nvml_wrapper::{
    Device, Nvml, bitmasks::event::EventTypes, enums::event::XidError, error::NvmlError, event::EventSet,
};
use tokio::sync::{oneshot, watch};

/// The paths at which a driver root may have the library.
const FOLDERS: [&str; 4] = ["usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib/aarch64-linux-gnu", "lib64"];
/// XIDs that are caused by applications and do not indicate a fault of the GPU.
const APPLICATION_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];
/// The duration of one wait for events, and so the maximum time until the watch ends.
const WAIT_MS: u32 = 500;

/// One GPU or one MIG device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its UUID in NVML, which is the device id for the kubelet.
    pub uuid: String,
    /// The number N of `/dev/nvidiaN`; for a MIG device, that of its GPU.
    pub minor: u32,
    /// The profile of a MIG device, such as `1g.10gb`.
    pub profile: Option<String>,
    /// Whether it is healthy. An unhealthy GPU stays unhealthy until the plugin restarts.
    pub healthy: bool,
}

/// The driver in use.
pub(super) struct Session(Nvml);

impl Session {
    /// Initialises the library in this driver root.
    pub(super) fn open(driver_root: &Path) -> Result<Self> {
        let library = find(driver_root)?;
        let opened = Nvml::builder().lib_path(library.as_os_str()).init();
        opened.map(Self).with_context(|| format!("could not initialise NVML from {}", library.display()))
    }

    pub(super) fn driver_version(&self) -> Result<String> {
        self.0.sys_driver_version().context("querying the driver's version")
    }

    pub(super) fn list(&self) -> Result<Vec<Gpu>> {
        let count = self.0.device_count().context("counting the GPUs")?;
        let mut gpus = Vec::new();
        for index in 0..count {
            let found = self.0.device_by_index(index).and_then(|device| whole_or_parts(&device));
            gpus.extend(found.with_context(|| format!("GPU {index}"))?);
        }
        Ok(gpus)
    }

    /// Keeps the driver in use and marks GPUs with critical XIDs, in a thread, because NVML blocks.
    pub(super) fn watch(self, health: watch::Sender<Vec<Gpu>>) -> Watcher {
        let (end_sender, ended) = oneshot::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        thread::spawn(move || {
            watch_until(&self.0, &health, &stopping);
            // Dropping the library shuts it down, which releases the driver.
            drop(self);
            let _ = end_sender.send(());
        });
        Watcher { stop, ended }
    }
}

/// Returns a GPU, or its MIG devices.
fn whole_or_parts(device: &Device<'_>) -> Result<Vec<Gpu>, NvmlError> {
    let gpu = Gpu { uuid: device.uuid()?, minor: device.minor_number()?, profile: None, healthy: true };
    if !device.mig_mode().is_ok_and(|mode| mode.current == 1) {
        return Ok(vec![gpu]);
    }
    // NVML returns an error for indices without a MIG device.
    let parts = (0..device.mig_device_count()?).filter_map(|place| device.mig_device_by_index(place).ok());
    let part = |part: Device<'_>| {
        let name = part.name()?;
        let profile = name.rsplit_once("MIG ").map_or(name.as_str(), |(_, profile)| profile).to_owned();
        Ok(Gpu { uuid: part.uuid()?, profile: Some(profile), ..gpu.clone() })
    };
    parts.map(part).collect()
}

/// The running watch.
pub(super) struct Watcher {
    stop: Arc<AtomicBool>,
    ended: oneshot::Receiver<()>,
}

impl Watcher {
    /// Returns when the driver has been released.
    pub(super) async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.ended.await;
    }
}

fn watch_until(nvml: &Nvml, health: &watch::Sender<Vec<Gpu>>, stop: &AtomicBool) {
    let mut set = register(nvml, health);
    while !stop.load(Ordering::Relaxed) {
        let Some(events) = &set else {
            thread::park_timeout(std::time::Duration::from_millis(WAIT_MS.into()));
            continue;
        };
        match events.wait(WAIT_MS) {
            Ok(event) => {
                if let Some(XidError::Value(xid)) = event.event_data
                    && !APPLICATION_XIDS.contains(&xid)
                {
                    let uuid = event.device.uuid().ok();
                    println!("XID {xid} on {}", uuid.as_deref().unwrap_or("an unknown GPU"));
                    mark(health, |gpu| uuid.as_ref().is_none_or(|uuid| gpu.uuid == *uuid));
                }
            }
            Err(NvmlError::Timeout) => {}
            Err(error) => {
                eprintln!("waiting for events failed, all GPUs count as unhealthy: {error}");
                mark(health, |_| true);
                set = None;
            }
        }
    }
}

/// Registers for the events of all GPUs. A GPU that cannot be registered counts as unhealthy.
fn register<'nvml>(nvml: &'nvml Nvml, health: &watch::Sender<Vec<Gpu>>) -> Option<EventSet<'nvml>> {
    let gpus = health.borrow().clone();
    let mut set = nvml.create_event_set().ok()?;
    // Faults of MIG devices are not simulated.
    for gpu in gpus.into_iter().filter(|gpu| gpu.profile.is_none()) {
        let registered = nvml.device_by_uuid(gpu.uuid.as_str()).map_err(|error| error.to_string()).and_then(|device| {
            let kinds = device.supported_event_types().map_err(|error| error.to_string())?;
            Ok((device, kinds & EventTypes::CRITICAL_XID_ERROR))
        });
        match registered {
            Ok((device, kinds)) => match device.register_events(kinds, set) {
                Ok(same) => set = same,
                // The wrapper frees the set when this fails.
                Err(error) => {
                    eprintln!("{}: cannot register for events: {error}", gpu.uuid);
                    return None;
                }
            },
            Err(error) => {
                eprintln!("{}: {error}", gpu.uuid);
                mark(health, |other| other.uuid == gpu.uuid);
            }
        }
    }
    Some(set)
}

fn mark(health: &watch::Sender<Vec<Gpu>>, which: impl Fn(&Gpu) -> bool) {
    health.send_if_modified(|gpus| {
        let mut changed = false;
        for gpu in gpus.iter_mut().filter(|gpu| gpu.healthy && which(gpu)) {
            gpu.healthy = false;
            changed = true;
        }
        changed
    });
}

fn find(driver_root: &Path) -> Result<PathBuf> {
    let candidates = FOLDERS.map(|folder| driver_root.join(folder).join("libnvidia-ml.so.1"));
    match candidates.into_iter().find(|library| library.exists()) {
        Some(library) => Ok(library),
        None => bail!("could not initialise NVML: there is no libnvidia-ml.so.1 under {}", driver_root.display()),
    }
}
