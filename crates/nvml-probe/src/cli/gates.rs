//! `wait` and `guard`: the gates before the containers of a stage's pod.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};

use super::{TERMINATED, duration};
use crate::{
    driver::CONTAINER_ROOT,
    gate::{Configured, Gate},
    host::HostRoot,
    signal::Shutdown,
    words::last_words,
};

#[derive(Debug, Subcommand)]
pub enum Wait {
    /// Until the NVIDIA driver is loaded and its libraries are installed.
    Driver {
        #[command(flatten)]
        gate: GateArgs,
        /// The driver's root on the host.
        #[arg(long, default_value = CONTAINER_ROOT)]
        driver_root: String,
        /// The version that must be loaded, or its branch alone, such as 580. Any, where it is not given.
        #[arg(long)]
        version: Option<String>,
    },
    /// Until the control daemons of MPS run.
    Mps {
        #[command(flatten)]
        gate: GateArgs,
        /// The folder in which they meet their clients, on the host.
        #[arg(long, default_value = "/run/nvidia/mps")]
        mps_root: PathBuf,
    },
    /// Until the NVIDIA container toolkit is installed.
    Toolkit {
        #[command(flatten)]
        gate: GateArgs,
        /// The toolkit's directory on the host.
        #[arg(long, default_value = "/usr/local/nvidia/toolkit")]
        install_dir: PathBuf,
        /// A file that holds the number of the installer's process, where it must be running.
        #[arg(long)]
        pid_file: Option<PathBuf>,
        /// A file of the container runtime's configuration, in one of which NVIDIA's runtime must be entered.
        #[arg(long, requires = "loaded")]
        runtime_config: Vec<PathBuf>,
        /// The folder that says what of them the runtime has loaded.
        #[arg(long)]
        loaded: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub struct Guard {
    #[command(flatten)]
    gate: GateArgs,
    /// The version that is to be installed, or its branch alone. Without it none that is in use is taken for the same.
    #[arg(long)]
    version: Option<String>,
    /// The host's file by which the driver's image knows that what is loaded is its own.
    #[arg(long, default_value = "/run/nvidia/nvidia-driver.state")]
    state_file: PathBuf,
}

#[derive(Debug, Args)]
pub struct GateArgs {
    /// Where the host's directories are mounted.
    #[arg(long, default_value = "/host")]
    host_root: PathBuf,
    /// Pause between two looks.
    #[arg(long, default_value = "1s", value_parser = duration)]
    interval: Duration,
    /// The file whose text Kubernetes shows once the container has ended.
    #[arg(long, default_value = "/dev/termination-log")]
    termination_log: PathBuf,
}

impl Wait {
    /// Waits until the gate opens, or until asked to end.
    pub async fn pass(self, shutdown: &mut Shutdown) -> ExitCode {
        let (gate, options) = match self {
            Self::Driver { gate, driver_root, version } => (Gate::Driver { root: driver_root, version }, gate),
            Self::Toolkit { gate, install_dir, pid_file, runtime_config, loaded } => {
                let configured = loaded.map(|loaded| Configured { files: runtime_config, loaded });
                (Gate::Toolkit { install_dir, pid_file, configured }, gate)
            }
            Self::Mps { gate, mps_root } => (Gate::Mps { root: mps_root }, gate),
        };
        pass(&gate, &options, shutdown).await
    }
}

impl Guard {
    /// Waits until the gate opens, or until asked to end.
    pub async fn pass(self, shutdown: &mut Shutdown) -> ExitCode {
        let Self { gate, version, state_file } = self;
        pass(&Gate::Guard { version, state_file }, &gate, shutdown).await
    }
}

async fn pass(gate: &Gate, options: &GateArgs, shutdown: &mut Shutdown) -> ExitCode {
    let host = HostRoot::new(&options.host_root);
    let say = |text: &str| {
        tracing::info!("{text}");
        last_words(&options.termination_log, text);
    };
    tokio::select! {
        () = gate.wait(&host, options.interval, say) => ExitCode::SUCCESS,
        () = shutdown.requested() => ExitCode::from(TERMINATED),
    }
}
