//! The stand-in device plugin. To the kubelet and the container runtime it behaves as NVIDIA's plugin.
//!
//! It lists the GPUs that the NVML library in the driver root reports, keeps that library initialised, registers the
//! GPUs as `nvidia.com/gpu` or under the name of shared GPUs, and answers allocations with CDI devices from a
//! specification that it writes, or with environment variables.

mod cdi;
mod google;
mod gpus;
mod kubelet;
mod offer;
mod service;

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time,
};

pub use google::run as run_as_googles;
pub use gpus::Gpu;
pub use kubelet::serve;
pub use offer::{HandOver, Offer, RESOURCE};

/// The kubelet's interface, generated.
#[allow(missing_docs, unused_qualifications, clippy::pedantic, clippy::all)]
pub mod api {
    tonic::include_proto!("v1beta1");
}

/// The time limit for the exit: a hanging library must not keep the container running.
const FAREWELL: Duration = Duration::from_secs(3);

/// The paths that the plugin uses, set by the environment variables of NVIDIA's plugin.
#[derive(Clone, Debug)]
pub struct Config {
    /// `NVIDIA_DRIVER_ROOT`, the driver root on the node, as the container runtime sees it.
    pub driver_root: PathBuf,
    /// `NVIDIA_DEV_ROOT`, the folder on the node whose `dev` has the device nodes; defaults to the driver root.
    pub dev_root: PathBuf,
    /// `DRIVER_ROOT_CTR_PATH`, the driver root as this process sees it.
    pub driver_root_here: PathBuf,
    /// `KUBELET_SOCKET`; the plugin's own socket is in the same folder.
    pub kubelet_socket: PathBuf,
    /// `CDI_ROOT`, the folder of the specification.
    pub cdi_root: PathBuf,
    /// `NVIDIA_CDI_HOOK_PATH`, the toolkit's hook on the node; without it the specification has no hook.
    pub hook: Option<PathBuf>,
}

impl Config {
    /// Returns the folder in which this process sees the device nodes: a privileged container has those of the node.
    fn dev_here(&self) -> PathBuf {
        let root = if self.dev_root == self.driver_root { self.driver_root_here.as_path() } else { Path::new("/") };
        root.join("dev")
    }

    /// Returns the configuration that the environment sets.
    #[must_use]
    pub fn from_env() -> Self {
        let path = |name, default: &str| PathBuf::from(env::var_os(name).unwrap_or_else(|| default.into()));
        let driver_root = path("NVIDIA_DRIVER_ROOT", "/run/nvidia/driver");
        Self {
            dev_root: env::var_os("NVIDIA_DEV_ROOT").map_or_else(|| driver_root.clone(), PathBuf::from),
            driver_root,
            driver_root_here: path("DRIVER_ROOT_CTR_PATH", "/driver-root"),
            kubelet_socket: path("KUBELET_SOCKET", "/var/lib/kubelet/device-plugins/kubelet.sock"),
            cdi_root: path("CDI_ROOT", "/var/run/cdi"),
            hook: env::var_os("NVIDIA_CDI_HOOK_PATH").map(PathBuf::from),
        }
    }
}

/// Serves until SIGTERM.
///
/// # Errors
/// If NVML cannot be initialised or the specification cannot be written. If the kubelet is not running, the plugin
/// waits for it.
pub async fn run(config: Config) -> Result<()> {
    let offer = Offer::from_env()?;
    let gpus = gpus::Session::open(&config.driver_root_here)?;
    let (devices, driver) = (gpus.list()?, gpus.driver_version()?);
    println!("driver {driver}, {} GPUs", devices.len());
    cdi::write(&config, &devices, &driver).context("writing the CDI specification")?;
    serve_until_told(gpus, devices, &config.kubelet_socket, &offer).await
}

async fn serve_until_told(gpus: gpus::Session, devices: Vec<Gpu>, kubelet: &Path, offer: &Offer) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let (health, devices) = watch::channel(devices);
    let watcher = gpus.watch(health);
    if devices.borrow().is_empty() {
        // As in NVIDIA's plugin, nothing is registered, but the process keeps running.
        println!("no GPUs found, waiting for SIGTERM");
        terminate.recv().await;
    } else {
        tokio::select! {
            ended = serve(kubelet, offer, &devices) => ended?,
            _ = terminate.recv() => {}
        }
    }
    println!("terminating");
    kubelet::leave(kubelet, offer, &devices.borrow());
    if time::timeout(FAREWELL, watcher.end()).await.is_err() {
        eprintln!("NVML hangs; exiting without shutting it down");
    }
    Ok(())
}
