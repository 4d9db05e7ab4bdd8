//! `detect`: the detector.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use gpu_host::{
    process::{Shutdown, parse_duration},
    root::HostRoot,
};

use super::error::CliError;
use crate::{
    detector::Detector,
    report::{announce::Announcer, publish::client},
};

#[derive(Debug, Args)]
pub struct Detect {
    /// Name of the node that this runs on.
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// The directory that contains the host's /sys.
    #[arg(long, default_value = "/")]
    host_root: PathBuf,
    /// Pause between two looks at the PCI bus.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    interval: Duration,
}

impl Detect {
    /// Detects GPUs until terminated.
    pub async fn run(self, shutdown: &mut Shutdown) -> Result<ExitCode, CliError> {
        tracing::info!(node = self.node_name, "{} detects GPUs", crate::USER_AGENT);
        let announcer = Announcer::new(client().await?, &self.node_name);
        let (host, interval) = (HostRoot::new(self.host_root), self.interval);
        Detector { host, interval, announcer }.run(shutdown.requested()).await;
        Ok(ExitCode::SUCCESS)
    }
}
