//! The command line of what divides GPUs by MIG.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;

use super::divide;
use crate::{
    child::{Limits, Supervisor, this_program},
    cli::duration,
    driver::CONTAINER_ROOT,
    host::HostRoot,
    mig::Layout,
    words::{chain, last_words},
};

/// What is to be divided, and how.
#[derive(Debug, Args)]
pub struct MigArgs {
    /// Where the host's directories are mounted.
    #[arg(long, default_value = "/host")]
    host_root: PathBuf,
    /// The driver's root on the host.
    #[arg(long, default_value = CONTAINER_ROOT)]
    driver_root: String,
    /// How often each profile is to be there on every GPU that has MIG, as a JSON object: `{"1g.10gb": 7}`. An empty one
    /// turns MIG off.
    #[arg(long, value_parser = layout)]
    layout: Layout,
    /// How long NVML may take for one step.
    #[arg(long, default_value = "2m", value_parser = duration)]
    nvml_deadline: Duration,
    /// Load NVML from where it lies, without changing root into the driver's.
    #[arg(long)]
    no_chroot: bool,
    /// The file whose text Kubernetes shows once the container has ended.
    #[arg(long, default_value = "/dev/termination-log")]
    termination_log: PathBuf,
}

impl MigArgs {
    /// Divides the GPUs, and leaves what stands in the way as the container's last words.
    ///
    /// # Errors
    /// When this program cannot be found to be started again as the NVML child.
    pub async fn run(self) -> std::io::Result<ExitCode> {
        let Self { host_root, driver_root, layout, nvml_deadline, no_chroot, termination_log } = self;
        let limits = Limits { answer: nvml_deadline, first_pause: Duration::ZERO, ..Limits::default() };
        let mut supervisor = Supervisor::new(this_program(std::env::current_exe()?), limits);
        let divided = divide(&HostRoot::new(host_root), !no_chroot, &driver_root, &layout, &mut supervisor).await;
        // Nothing of this container is to hold the driver while the next one begins.
        if let Err(stuck) = supervisor.end().await {
            tracing::warn!("{stuck}");
        }
        Ok(match divided {
            Ok(()) => {
                tracing::info!(?layout, "the GPUs are divided");
                ExitCode::SUCCESS
            }
            Err(error) => {
                tracing::error!("{}", chain(&error));
                last_words(&termination_log, &chain(&error));
                ExitCode::FAILURE
            }
        })
    }
}

fn layout(text: &str) -> Result<Layout, String> {
    serde_json::from_str(text).map_err(|error| format!("write {{\"1g.10gb\": 7}}: {error}"))
}
