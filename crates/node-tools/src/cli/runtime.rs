//! The `runtime` command line.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Subcommand};
use gpu_host::process::{Shutdown, error_chain, parse_duration, write_termination_log};

use crate::runtime::{
    config_files::config_files,
    daemon::{self, Daemon},
    entries::{NvidiaEntries, RuntimeKind},
    restart::WaitLimits,
    steps::{self, Setup, StepError},
};

const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A step of a toolkit pod.
#[derive(Debug, Subcommand)]
pub enum RuntimeStep {
    /// Before the installer: store the current configuration, and check that Docker's flags permit another.
    Snapshot(Options),
    /// After the installer: restart the runtime if it has not loaded its configuration.
    Apply(Options),
    /// Watch the configuration until terminated.
    Keep {
        /// How the runtime is configured.
        #[command(flatten)]
        options: Options,
        /// Pause between two checks.
        #[arg(long, default_value = "1m", value_parser = parse_duration)]
        interval: Duration,
    },
    /// When the pod is deleted: remove NVIDIA's runtime from the configuration.
    Revert(Options),
    /// Become the host's systemctl. `apply` starts this itself.
    #[command(hide = true)]
    Systemctl {
        /// The root to change into.
        #[arg(long)]
        host_root: PathBuf,
        /// The service to restart.
        unit: String,
    },
}

/// How the runtime is configured.
#[derive(Args, Debug)]
pub struct Options {
    /// The container runtime.
    #[arg(long)]
    kind: RuntimeKind,
    /// Its main configuration file.
    #[arg(long)]
    config: Option<PathBuf>,
    /// The drop-in file that the installer writes.
    #[arg(long)]
    drop_in: Option<PathBuf>,
    /// The runtime's socket.
    #[arg(long)]
    socket: PathBuf,
    /// The name under which NVIDIA's runtime is configured.
    #[arg(long)]
    handler: String,
    /// The folder of NVIDIA's programs.
    #[arg(long)]
    install_dir: String,
    /// Folder for state that survives a reboot.
    #[arg(long)]
    state: PathBuf,
    /// Folder for state that does not survive a reboot.
    #[arg(long)]
    loaded: PathBuf,
    /// NVIDIA's runtime also runs the pods without a RuntimeClass.
    #[arg(long)]
    default: bool,
    /// How long the runtime may take to restart.
    #[arg(long, default_value = "2m", value_parser = parse_duration)]
    deadline: Duration,
}

impl Options {
    fn setup(self) -> Setup {
        Setup {
            files: config_files(self.kind, self.config.as_deref(), self.drop_in.as_deref()),
            entries: NvidiaEntries { handler: self.handler, install_dir: self.install_dir },
            daemon: Daemon { kind: self.kind, socket: self.socket, proc: daemon::proc() },
            default: self.default,
            state: self.state,
            loaded: self.loaded,
            limits: WaitLimits { deadline: self.deadline, interval: CHECK_INTERVAL },
        }
    }
}

impl RuntimeStep {
    /// Runs the step, and writes its error to the container's termination log, from which the node's status has it.
    pub async fn pass(self, termination_log: &Path, shutdown: &mut Shutdown) -> ExitCode {
        match self.run(shutdown).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!("{}", error_chain(&error));
                write_termination_log(termination_log, &error_chain(&error));
                ExitCode::FAILURE
            }
        }
    }

    async fn run(self, shutdown: &mut Shutdown) -> Result<(), StepError> {
        match self {
            Self::Snapshot(options) => {
                let setup = options.setup();
                steps::snapshot(&setup)?;
                steps::check_flags(&setup).await
            }
            Self::Apply(options) => steps::apply(&options.setup()).await,
            Self::Keep { options, interval } => {
                let setup = options.setup();
                tokio::select! {
                    error = steps::keep(&setup, interval) => Err(error),
                    () = shutdown.requested() => Ok(()),
                }
            }
            Self::Revert(options) => steps::revert(&options.setup()).await,
            Self::Systemctl { host_root, unit } => {
                Err(StepError::NotRestarted(daemon::become_systemctl(&host_root, &unit).to_string()))
            }
        }
    }
}
