//! The stand-in for Google's device plugin, which gives containers device nodes and a folder with the driver.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{HandOver, Offer, gpus, serve_until_told};

/// Serves until SIGTERM, as these arguments say, by the names of Google's plugin.
///
/// # Errors
/// If an argument is missing or NVML cannot be initialised. A kubelet that is away is waited for.
pub async fn run(args: &[String]) -> Result<()> {
    let option = |name: &str| {
        let value = args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
        value.map(PathBuf::from).with_context(|| format!("{name} is missing"))
    };
    let (host, container) = (option("--host-path")?, option("--container-path")?);
    let kubelet = option("--plugin-directory")?.join("kubelet.sock");
    // In its own container the folder is where other containers will have it.
    let gpus = gpus::Session::open(&container)?;
    let devices = gpus.list()?;
    println!("driver {}, {} GPUs", gpus.driver_version()?, devices.len());
    let offer = Offer { hand_over: HandOver::Mounts { host, container }, ..Offer::default() };
    serve_until_told(gpus, devices, &kubelet, &offer).await
}
