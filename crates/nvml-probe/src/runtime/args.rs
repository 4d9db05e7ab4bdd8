//! The command line of `runtime`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use super::{
    daemon::{self, Daemon},
    files::{Kind, Ours, files},
    restart::Patience,
    steps::{self, Setup, StepError},
    unit,
};
use crate::{cli::duration, signal::Shutdown};

/// Pause between two looks at a runtime that is coming back.
const LOOK: Duration = Duration::from_millis(500);

/// A step of a toolkit's pod.
#[derive(Debug, Subcommand)]
pub enum Step {
    /// Before the installer: keep the configuration as it is.
    Snapshot(Options),
    /// After the installer: restart the runtime, if it has not loaded its configuration.
    Apply(Options),
    /// Watch over the configuration until asked to end.
    Keep {
        /// How the runtime is configured.
        #[command(flatten)]
        options: Options,
        /// Pause between two looks.
        #[arg(long, default_value = "1m", value_parser = duration)]
        interval: Duration,
    },
    /// When the pod goes: take out of the configuration what was entered.
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
    kind: Kind,
    /// Its main configuration.
    #[arg(long)]
    config: Option<PathBuf>,
    /// The file beside it that the installer writes.
    #[arg(long)]
    drop_in: Option<PathBuf>,
    /// The socket that it listens on.
    #[arg(long)]
    socket: PathBuf,
    /// The name under which NVIDIA's runtime is entered.
    #[arg(long)]
    handler: String,
    /// The folder of NVIDIA's programs.
    #[arg(long)]
    install_dir: String,
    /// Folder of what has to outlive a reboot.
    #[arg(long)]
    state: PathBuf,
    /// Folder of what must not.
    #[arg(long)]
    loaded: PathBuf,
    /// NVIDIA's runtime runs the pods that name no RuntimeClass as well.
    #[arg(long)]
    default: bool,
    /// How long the runtime may take to come back.
    #[arg(long, default_value = "2m", value_parser = duration)]
    deadline: Duration,
}

impl Options {
    fn setup(self) -> Setup {
        Setup {
            files: files(self.kind, self.config.as_deref(), self.drop_in.as_deref()),
            ours: Ours { handler: self.handler, install_dir: self.install_dir },
            daemon: Daemon { kind: self.kind, socket: self.socket, proc: daemon::proc() },
            default: self.default,
            state: self.state,
            loaded: self.loaded,
            patience: Patience { deadline: self.deadline, interval: LOOK },
        }
    }
}

impl Step {
    /// Does what is asked.
    ///
    /// # Errors
    /// In words for the node's status.
    pub async fn run(self, shutdown: &mut Shutdown) -> Result<(), StepError> {
        match self {
            Self::Snapshot(options) => steps::snapshot(&options.setup()),
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
                Err(StepError::NotRestarted(unit::become_systemctl(&host_root, &unit).to_string()))
            }
        }
    }
}
