//! The `mig` command line.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use gpu_host::{
    nvml::supervisor::{Limits, Supervisor, child_command},
    observe::driver::CONTAINER_ROOT,
    process::{error_chain, parse_duration, write_termination_log},
    root::HostRoot,
};
use gpu_operator_common::mig_layout::MigLayout;

use crate::mig::apply::apply_layout;

/// The MIG layout to apply, and how.
#[derive(Debug, Args)]
pub struct MigArgs {
    /// Where the host's directories are mounted.
    #[arg(long, default_value = "/host")]
    host_root: PathBuf,
    /// The driver's root on the host.
    #[arg(long, default_value = CONTAINER_ROOT)]
    driver_root: String,
    /// The number of instances of each profile, as a JSON object: by index (the order of PCI addresses, from 0) for single
    /// GPUs, and for all others: `{"devices": {"0": {"1g.10gb": 7}}, "others": {"3g.40gb": 2}}`. MIG is disabled on GPUs
    /// without a profile.
    #[arg(long, value_parser = layout)]
    layout: MigLayout,
    /// How long NVML may take for one step.
    #[arg(long, default_value = "2m", value_parser = parse_duration)]
    nvml_deadline: Duration,
    /// Load NVML without changing root into the driver's root.
    #[arg(long)]
    no_chroot: bool,
    /// The file whose text Kubernetes shows once the container has ended.
    #[arg(long, default_value = "/dev/termination-log")]
    termination_log: PathBuf,
}

impl MigArgs {
    /// Applies the layout, and writes an obstacle to the container's termination log.
    pub async fn run(self) -> std::io::Result<ExitCode> {
        let Self { host_root, driver_root, layout, nvml_deadline, no_chroot, termination_log } = self;
        let limits = Limits { answer: nvml_deadline, first_pause: Duration::ZERO, ..Limits::default() };
        let mut supervisor = Supervisor::new(child_command(std::env::current_exe()?), limits);
        let outcome = apply_layout(&HostRoot::new(host_root), !no_chroot, &driver_root, &layout, &mut supervisor).await;
        // No process of this container may hold the driver while the next container starts.
        if let Err(stuck) = supervisor.end().await {
            tracing::warn!("{stuck}");
        }
        Ok(match outcome {
            Ok(()) => {
                tracing::info!(?layout, "the MIG layout is applied");
                ExitCode::SUCCESS
            }
            Err(error) => {
                tracing::error!("{}", error_chain(&error));
                write_termination_log(&termination_log, &error_chain(&error));
                ExitCode::FAILURE
            }
        })
    }
}

fn layout(text: &str) -> Result<MigLayout, String> {
    serde_json::from_str(text).map_err(|error| format!("write {{\"others\": {{\"1g.10gb\": 7}}}}: {error}"))
}
