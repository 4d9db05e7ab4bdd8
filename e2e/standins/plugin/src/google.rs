//! The stand-in for Google's device plugin, which gives containers device nodes and a folder with the driver.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{
    gpus,
    offer::{HandOver, Offer},
    run::serve_until_told,
};

/// Serves until SIGTERM with these arguments, which have the names of Google's plugin.
pub async fn run(args: &[String]) -> Result<()> {
    let option = |name: &str| {
        let value = args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
        value.map(PathBuf::from).with_context(|| format!("{name} is missing"))
    };
    let (host, container) = (option("--host-path")?, option("--container-path")?);
    let kubelet = option("--plugin-directory")?.join("kubelet.sock");
    // The plugin has the folder at the same path as the other containers.
    let gpus = gpus::Session::open(&container)?;
    let devices = gpus.list()?;
    println!("driver {}, {} GPUs", gpus.driver_version()?, devices.len());
    let offer = Offer { hand_over: HandOver::Mounts { host, container }, ..Offer::default() };
    serve_until_told(gpus, devices, &kubelet, &offer).await
}
