//! Running the plugins from start to SIGTERM: NVIDIA's, and Google's, which gives containers device nodes and a folder with the driver.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time,
};

use super::{
    cdi,
    gpus::{Gpu, Session},
    kubelet::{self, serve},
    offer::{Config, HandOver, Offer},
};

/// The time limit for the exit: a hanging library must not keep the container running.
const FAREWELL: Duration = Duration::from_secs(3);

/// Serves until SIGTERM.
pub async fn run(config: Config) -> Result<()> {
    let offer = Offer::from_env()?;
    let gpus = Session::open(&config.driver_root_here)?;
    let (devices, driver) = (gpus.list()?, gpus.driver_version()?);
    println!("driver {driver}, {} GPUs", devices.len());
    cdi::write(&config, &devices, &driver).context("writing the CDI specification")?;
    serve_until_told(gpus, devices, &config.kubelet_socket, &offer).await
}

async fn serve_until_told(gpus: Session, devices: Vec<Gpu>, kubelet: &Path, offer: &Offer) -> Result<()> {
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

/// Serves until SIGTERM with these arguments, which have the names of Google's plugin.
pub async fn run_as_googles(args: &[String]) -> Result<()> {
    let option = |name: &str| {
        let value = args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
        value.map(PathBuf::from).with_context(|| format!("{name} is missing"))
    };
    let (host, container) = (option("--host-path")?, option("--container-path")?);
    let kubelet = option("--plugin-directory")?.join("kubelet.sock");
    // The plugin has the folder at the same path as the other containers.
    let gpus = Session::open(&container)?;
    let devices = gpus.list()?;
    println!("driver {}, {} GPUs", gpus.driver_version()?, devices.len());
    let offer = Offer { hand_over: HandOver::Mounts { host, container }, ..Offer::default() };
    serve_until_told(gpus, devices, &kubelet, &offer).await
}
