//! Running the plugin from start to SIGTERM.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time,
};

use super::{
    cdi,
    config::Config,
    gpus::{Gpu, Session},
    kubelet::{self, serve},
    offer::Offer,
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

pub(crate) async fn serve_until_told(gpus: Session, devices: Vec<Gpu>, kubelet: &Path, offer: &Offer) -> Result<()> {
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
