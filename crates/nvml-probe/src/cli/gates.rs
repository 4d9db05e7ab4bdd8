//! `wait` and `guard`: the gates before the containers of a stage's pod.

use std::{fs, io, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};

use super::{TERMINATED, duration};
use crate::{
    driver::CONTAINER_ROOT,
    gate::{Answer, Configured, Gate, Takeover},
    host::HostRoot,
    nouveau,
    signal::Shutdown,
    start::{self, StartError},
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
        /// The host's file that the driver's container keeps locked while it runs, where a container installs the driver.
        #[arg(long)]
        pid_file: Option<PathBuf>,
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
    /// The digest of the configuration that NVIDIA's container is about to install. Without it the installer is one that
    /// leaves a loaded module of the wanted version alone.
    #[arg(long)]
    digest: Option<String>,
    /// The file in which NVIDIA's container keeps the digest of what it has installed.
    #[arg(long, default_value = "/host/run/nvidia/nvidia-driver.state", requires = "digest")]
    state_file: PathBuf,
    /// The host's folder that the driver is installed into. Without a version, a driver in use whose libraries are there
    /// passes.
    #[arg(long)]
    install_dir: Option<String>,
    /// A file that says what is waited for, while it is, to those who see this container run.
    #[arg(long)]
    waits_file: Option<PathBuf>,
    /// The place where a container that has died may have left its root mounted.
    #[arg(long)]
    unmount: Option<PathBuf>,
    /// The file that a driver's container locks while it runs. One that has been killed may take a moment to end.
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
            Self::Driver { gate, driver_root, version, pid_file } => {
                (Gate::Driver { root: driver_root, version, pid_file }, gate)
            }
            Self::Toolkit { gate, install_dir, pid_file, runtime_config, loaded } => {
                let configured = loaded.map(|loaded| Configured { files: runtime_config, loaded });
                (Gate::Toolkit { install_dir, pid_file, configured }, gate)
            }
            Self::Mps { gate, mps_root } => (Gate::Mps { root: mps_root }, gate),
        };
        pass(&gate, &options, shutdown, |_| ()).await
    }
}

impl Guard {
    /// Waits until the gate opens, or until asked to end. With a program to become it does not return from there.
    pub async fn pass(self, shutdown: &mut Shutdown) -> Result<ExitCode, StartError> {
        let Self { mut gate, version, digest, state_file, install_dir, waits_file, unmount, pid_file, command } = self;
        let unless = match digest {
            Some(digest) => Takeover::Digest { file: state_file, digest },
            None => Takeover::Loaded { install_dir },
        };
        if let Some(file) = &pid_file {
            tokio::select! {
                () = start::until_unlocked(file, gate.interval) => {}
                () = shutdown.requested() => return Ok(ExitCode::from(TERMINATED)),
            }
        }
        if let Some(place) = &unmount {
            start::unmount_all(place)?;
        }
        if !command.is_empty() {
            // The last words of this container are to be those of the program.
            gate.termination_log = PathBuf::from("/dev/null");
        }
        let waiting = waits_file.map(Waiting);
        let say = |answer: &Answer| waiting.iter().for_each(|file| file.say(answer));
        let code = pass(&Gate::Guard { version, unless }, &gate, shutdown, say).await;
        waiting.iter().for_each(Waiting::is_over);
        if code != ExitCode::SUCCESS || command.is_empty() {
            return Ok(code);
        }
        Err(start::become_program(&command))
    }
}

impl UnloadNouveau {
    /// Waits until nouveau is not loaded, and unloads it once nothing uses it, or until asked to end.
    pub async fn pass(self, shutdown: &mut Shutdown) -> ExitCode {
        let Self { gate: GateArgs { host_root, interval, termination_log } } = self;
        let say = |text: &str| {
            tracing::info!("{text}");
            last_words(&termination_log, text);
        };
        let host = HostRoot::new(host_root);
        tokio::select! {
            () = nouveau::unload_unused(&host, interval, say) => ExitCode::SUCCESS,
            () = shutdown.requested() => ExitCode::from(TERMINATED),
        }
    }
}

/// A file that says what is waited for. Nobody else has to be able to tell a container that waits from one that works.
struct Waiting(PathBuf);

impl Waiting {
    fn say(&self, answer: &Answer) {
        if let Answer::Waiting(text) = answer
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

async fn pass(gate: &Gate, options: &GateArgs, shutdown: &mut Shutdown, tell: impl Fn(&Answer)) -> ExitCode {
    let host = HostRoot::new(&options.host_root);
    let say = |answer: &Answer| {
        let (Answer::Open(text) | Answer::Waiting(text)) = answer;
        tracing::info!("{text}");
        last_words(&options.termination_log, text);
        tell(answer);
    };
    tokio::select! {
        () = gate.wait(&host, options.interval, say) => ExitCode::SUCCESS,
        () = shutdown.requested() => ExitCode::from(TERMINATED),
    }
}
