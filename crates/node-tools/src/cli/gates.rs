//! `wait` and `guard`: the gates before the containers of a stage's pod; and the errors of all subcommands.

use std::{fs, io, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use gpu_host::{
    observe::driver::CONTAINER_ROOT,
    process::{
        EXIT_TERMINATED, ExecError, Shutdown, become_program, error_chain, parse_duration, write_termination_log,
    },
    root::HostRoot,
};

use crate::{
    gates::{
        nouveau,
        wait::{self, Gate, GateStatus, MountError, RuntimeRequirement, Takeover},
    },
    operands::{
        files::{UnpackError, WriteFileError},
        inject::InjectError,
    },
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
        /// The version that must be loaded, or only its branch, such as 580. Defaults to any version.
        #[arg(long)]
        version: Option<String>,
        /// The host's file that the driver's container keeps locked while it runs, if a container installs the driver.
        #[arg(long)]
        pid_file: Option<PathBuf>,
    },
    /// Until the MPS control daemons run.
    Mps {
        #[command(flatten)]
        gate: GateArgs,
        /// The host's folder in which the daemons meet their clients.
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
        /// A file with the process id of the installer, if the installer must be running.
        #[arg(long)]
        pid_file: Option<PathBuf>,
        /// A file of the container runtime's configuration. NVIDIA's runtime must be configured in one of them.
        #[arg(long, requires = "loaded")]
        runtime_config: Vec<PathBuf>,
        /// The folder that records which configuration the runtime has loaded.
        #[arg(long)]
        loaded: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub struct Guard {
    #[command(flatten)]
    gate: GateArgs,
    /// The version to be installed, or only its branch. Without it, no driver in use counts as the same version.
    #[arg(long)]
    version: Option<String>,
    /// The digest of the configuration that NVIDIA's container is about to install. Without it, the installer is
    /// assumed to keep a loaded module of the wanted version.
    #[arg(long)]
    digest: Option<String>,
    /// The file in which NVIDIA's container stores the digest of what it has installed.
    #[arg(long, default_value = "/host/run/nvidia/nvidia-driver.state", requires = "digest")]
    state_file: PathBuf,
    /// The host's folder into which the driver is installed. Without a version, a driver in use whose libraries are
    /// there passes.
    #[arg(long)]
    install_dir: Option<String>,
    /// A file that holds the reason while the guard waits, for users who only see that this container is running.
    #[arg(long)]
    waits_file: Option<PathBuf>,
    /// The mount point of the root of the driver's container, in a folder that is shared with the host. A dead
    /// container may have left its root mounted there; the next root will not contain that folder.
    #[arg(long)]
    unmount: Option<PathBuf>,
    /// The file that a driver's container locks while it runs. A killed container may take a moment to exit.
    #[arg(long)]
    pid_file: Option<PathBuf>,
    /// The program to become.
    #[arg(last = true)]
    command: Vec<String>,
}

#[derive(Debug, Args)]
pub struct UnloadNouveau {
    #[command(flatten)]
    gate: GateArgs,
}

#[derive(Debug, Args)]
pub struct GateArgs {
    /// Where the host's directories are mounted.
    #[arg(long, default_value = "/host")]
    host_root: PathBuf,
    /// Pause between two checks.
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// The file whose text Kubernetes shows once the container has ended.
    #[arg(long, default_value = "/dev/termination-log")]
    termination_log: PathBuf,
}

impl Wait {
    /// Waits until the gate opens or the process is terminated.
    pub async fn pass(self, shutdown: &mut Shutdown) -> ExitCode {
        let (gate, options) = match self {
            Self::Driver { gate, driver_root, version, pid_file } => {
                (Gate::Driver { root: driver_root, version, pid_file }, gate)
            }
            Self::Toolkit { gate, install_dir, pid_file, runtime_config, loaded } => {
                let configured = loaded.map(|loaded| RuntimeRequirement { files: runtime_config, loaded });
                (Gate::Toolkit { install_dir, pid_file, configured }, gate)
            }
            Self::Mps { gate, mps_root } => (Gate::Mps { root: mps_root }, gate),
        };
        pass(&gate, &options, shutdown, |_| ()).await
    }
}

impl Guard {
    /// Waits until the gate opens or the process is terminated. If there is a program to become, it then does not
    /// return.
    pub async fn pass(self, shutdown: &mut Shutdown) -> Result<ExitCode, ToolError> {
        let Self { mut gate, version, digest, state_file, install_dir, waits_file, unmount, pid_file, command } = self;
        let takeover = match digest {
            Some(digest) => Takeover::Digest { file: state_file, digest },
            None => Takeover::Loaded { install_dir },
        };
        if let Some(file) = &pid_file {
            tokio::select! {
                () = wait::wait_until_unlocked(file, gate.interval) => {}
                () = shutdown.requested() => return Ok(ExitCode::from(EXIT_TERMINATED)),
            }
        }
        if let Some(place) = &unmount {
            wait::unmount_all(place)?;
            let excluded = place.parent().map_or(Ok(()), wait::exclude_from_binds);
            // The driver is more important than the mounts that a later restart of its container would remove.
            if let Err(error) = excluded {
                tracing::warn!(
                    error = error_chain(&error),
                    "the root of this container will contain mounts of the host"
                );
            }
        }
        if !command.is_empty() {
            // The termination message of this container belongs to the program.
            gate.termination_log = PathBuf::from("/dev/null");
        }
        let waiting = waits_file.map(Waiting);
        let notify = |status: &GateStatus| waiting.iter().for_each(|file| file.notify(status));
        let code = pass(&Gate::Guard { version, takeover }, &gate, shutdown, notify).await;
        waiting.iter().for_each(Waiting::is_over);
        if code != ExitCode::SUCCESS || command.is_empty() {
            return Ok(code);
        }
        Err(become_program(&command).into())
    }
}

impl UnloadNouveau {
    /// Waits until neither nouveau nor nova is loaded, unloading them once they are unused, or until the process is
    /// terminated.
    pub async fn pass(self, shutdown: &mut Shutdown) -> ExitCode {
        let Self { gate: GateArgs { host_root, interval, termination_log } } = self;
        let notify = |text: &str| {
            tracing::info!("{text}");
            write_termination_log(&termination_log, text);
        };
        let host = HostRoot::new(host_root);
        tokio::select! {
            () = nouveau::unload_unused(&host, interval, notify) => ExitCode::SUCCESS,
            () = shutdown.requested() => ExitCode::from(EXIT_TERMINATED),
        }
    }
}

/// A file that holds the reason for waiting. Without it, a waiting container looks like a working one.
struct Waiting(PathBuf);

impl Waiting {
    fn notify(&self, status: &GateStatus) {
        if let GateStatus::Waiting(text) = status
            && let Err(error) = fs::write(&self.0, text)
        {
            tracing::debug!(%error, "cannot write {}", self.0.display());
        }
    }

    fn is_over(&self) {
        if let Err(error) = fs::remove_file(&self.0).or_else(absent) {
            tracing::debug!(%error, "cannot remove {}", self.0.display());
        }
    }
}

fn absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

async fn pass(gate: &Gate, options: &GateArgs, shutdown: &mut Shutdown, on_change: impl Fn(&GateStatus)) -> ExitCode {
    let host = HostRoot::new(&options.host_root);
    let notify = |status: &GateStatus| {
        let (GateStatus::Open(text) | GateStatus::Waiting(text)) = status;
        tracing::info!("{text}");
        write_termination_log(&options.termination_log, text);
        on_change(status);
    };
    tokio::select! {
        () = gate.wait(&host, options.interval, notify) => ExitCode::SUCCESS,
        () = shutdown.requested() => ExitCode::from(EXIT_TERMINATED),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("cannot start")]
    Start(#[from] io::Error),
    #[error(transparent)]
    Prepare(#[from] WriteFileError),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error(transparent)]
    Inject(#[from] InjectError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Exec(#[from] ExecError),
}
