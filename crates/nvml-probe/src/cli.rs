//! The command line.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::{Args, Parser, Subcommand};
use tokio::{net::TcpListener, sync::watch};

use crate::{
    admin::{self, Admin},
    agent::{Agent, Settings, patience},
    child::{Limits, Supervisor, this_program},
    divide::args::MigArgs,
    driver::CONTAINER_ROOT,
    gate::{Configured, Gate},
    host::HostRoot,
    metrics::Metrics,
    nvml::{self, ChildError, ChildOptions},
    prepare::{self, PrepareError},
    publish::{PublishError, Publisher, Seen, client, follow},
    pulse::Pulse,
    runtime::args::Step,
    signal::Shutdown,
};

/// What a shell says of a process that SIGTERM ended. A gate that is ended is not open, and must not say so.
const TERMINATED: u8 = 128 + 15;

/// The node agent of the GPU operator, and the gates of its pods.
#[derive(Debug, Parser)]
#[command(name = "nvml-probe", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Report this node's GPUs and driver to its `GpuNode`, until asked to end.
    Run(Run),
    /// Wait until a fact is true on this node, then exit 0.
    #[command(subcommand)]
    Wait(Wait),
    /// Wait until installing a driver would take none from under a program, then exit 0.
    Guard(Guard),
    /// A step of a toolkit's pod around the configuration of the container runtime.
    Runtime {
        #[command(subcommand)]
        step: Step,
        /// The file whose text Kubernetes shows once the container has ended.
        #[arg(long, global = true, default_value = "/dev/termination-log")]
        termination_log: PathBuf,
    },
    /// Divide this node's GPUs by MIG, then exit 0.
    Mig(MigArgs),
    /// Write a file for the container that comes after.
    Write {
        /// Where.
        path: PathBuf,
        /// What is in it.
        text: String,
    },
    /// Link what programs need of a driver for the container that comes after.
    Link {
        /// The driver's root, mounted where that container has it too.
        driver_root: PathBuf,
        /// The folder for the links: `bin` and `lib` in it.
        into: PathBuf,
    },
    /// Do nothing until asked to end, then exit 0.
    Hold,
    /// Load NVML and answer for it. The probe starts this itself.
    #[command(hide = true)]
    NvmlChild(NvmlChild),
}

#[derive(Debug, Args)]
struct Run {
    /// Name of the node this runs on.
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Where the host's / is mounted.
    #[arg(long, default_value = "/host")]
    host_root: PathBuf,
    /// Pause between two looks at the node.
    #[arg(long, default_value = "10s", value_parser = duration)]
    interval: Duration,
    /// How long NVML may take to answer before its process is killed.
    #[arg(long, default_value = "30s", value_parser = duration)]
    nvml_deadline: Duration,
    /// The kernel's log, which tells of XIDs that came while nobody asked NVML. A probe that cannot read it does without.
    #[arg(long, env = "KERNEL_LOG", default_value = "/dev/kmsg")]
    kernel_log: PathBuf,
    /// Load NVML from where it lies, without changing root into the driver's. For a probe that is no container.
    #[arg(long)]
    no_chroot: bool,
    /// Address of /livez, /readyz and /metrics. Nothing is served without it.
    #[arg(long)]
    listen: Option<SocketAddr>,
}

#[derive(Debug, Subcommand)]
enum Wait {
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
struct Guard {
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
struct GateArgs {
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

#[derive(Debug, Args)]
struct NvmlChild {
    /// The process that must be the parent.
    #[arg(long)]
    parent: u32,
    /// The root to change into.
    #[arg(long)]
    chroot: Option<PathBuf>,
    /// The library to load, inside that root.
    #[arg(long)]
    library: PathBuf,
}

/// The program could not begin, or its child could not go on.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The runtime, the signal handlers or this program's own path.
    #[error("cannot start")]
    Start(#[from] std::io::Error),
    /// No client for the API server.
    #[error("cannot reach the API server")]
    Client(#[from] PublishError),
    /// The address cannot be listened on.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// For the container that comes after.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// As the NVML child.
    #[error(transparent)]
    Child(#[from] ChildError),
}

impl Cli {
    /// Does what is asked.
    ///
    /// # Errors
    /// When it cannot begin. What fails later is retried.
    pub fn execute(self) -> Result<ExitCode, CliError> {
        let command = match self.command {
            Command::NvmlChild(NvmlChild { parent, chroot, library }) => {
                nvml::child(&ChildOptions { parent, chroot, library })?;
                return Ok(ExitCode::SUCCESS);
            }
            Command::Write { path, text } => {
                prepare::write(&path, &text)?;
                return Ok(ExitCode::SUCCESS);
            }
            Command::Link { driver_root, into } => {
                prepare::link(&driver_root, &into)?;
                return Ok(ExitCode::SUCCESS);
            }
            command => command,
        };
        // One thread, the process' first: a child is tied to the thread that starts it, not to the process, so it
        // must be one that lives as long as the process does.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut shutdown = Shutdown::listen()?;
            match command {
                Command::Run(options) => run(options, &mut shutdown).await,
                Command::Wait(Wait::Driver { gate, driver_root, version }) => {
                    Ok(pass(&Gate::Driver { root: driver_root, version }, &gate, &mut shutdown).await)
                }
                Command::Wait(Wait::Toolkit { gate, install_dir, pid_file, runtime_config, loaded }) => {
                    let configured = loaded.map(|loaded| Configured { files: runtime_config, loaded });
                    Ok(pass(&Gate::Toolkit { install_dir, pid_file, configured }, &gate, &mut shutdown).await)
                }
                Command::Runtime { step, termination_log } => Ok(match step.run(&mut shutdown).await {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => {
                        tracing::error!("{}", chain(&error));
                        last_words(&termination_log, &chain(&error));
                        ExitCode::FAILURE
                    }
                }),
                Command::Wait(Wait::Mps { gate, mps_root }) => {
                    Ok(pass(&Gate::Mps { root: mps_root }, &gate, &mut shutdown).await)
                }
                Command::Guard(Guard { gate, version, state_file }) => {
                    Ok(pass(&Gate::Guard { version, state_file }, &gate, &mut shutdown).await)
                }
                Command::Mig(options) => tokio::select! {
                    code = options.run() => Ok(code?),
                    () = shutdown.requested() => Ok(ExitCode::from(TERMINATED)),
                },
                Command::Hold | Command::NvmlChild(_) | Command::Write { .. } | Command::Link { .. } => {
                    shutdown.requested().await;
                    Ok(ExitCode::SUCCESS)
                }
            }
        })
    }
}

async fn run(options: Run, shutdown: &mut Shutdown) -> Result<ExitCode, CliError> {
    tracing::info!(node = options.node_name, host_root = %options.host_root.display(), "{} begins", crate::USER_AGENT);
    let client = client().await?;
    let pulse = Pulse::new(patience(options.interval, options.nvml_deadline));
    let admin = Admin { pulse: Arc::new(pulse), metrics: Arc::new(Metrics::new(&options.node_name)) };
    if let Some(address) = options.listen {
        serve(address, admin.clone()).await.map_err(|error| CliError::Listen(address, error))?;
    }
    let limits = Limits { answer: options.nvml_deadline, ..Limits::default() };
    let supervisor = Supervisor::new(this_program(std::env::current_exe()?), limits);
    let (sender, seen) = watch::channel(Seen::Unknown);
    let follower = tokio::spawn(follow(client.clone(), options.node_name.clone(), sender));
    let settings = Settings {
        host: HostRoot::new(options.host_root),
        kernel_log: options.kernel_log,
        interval: options.interval,
        chroot: !options.no_chroot,
    };
    let publisher = Publisher::new(client, &options.node_name);
    Agent::new(settings, supervisor, publisher, seen, admin).run(shutdown.requested()).await;
    follower.abort();
    Ok(ExitCode::SUCCESS)
}

/// Listens, and answers for as long as the runtime lives.
async fn serve(address: SocketAddr, admin: Admin) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "/livez, /readyz and /metrics are served");
    tokio::spawn(axum::serve(listener, admin::router(admin)).into_future());
    Ok(())
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

/// What Kubernetes shows of a container once it has ended.
pub(crate) fn last_words(termination_log: &Path, text: &str) {
    if let Err(error) = fs::write(termination_log, text) {
        tracing::debug!(%error, "cannot write {}", termination_log.display());
    }
}

/// `250ms`, `10s`, `5m`.
///
/// # Errors
/// Where it is none, or nothing.
pub fn duration(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let value: u64 = number.parse().map_err(|_| format!("{text} is no duration: write 500ms, 10s or 5m"))?;
    let duration = match &text[number.len()..] {
        "ms" => Duration::from_millis(value),
        "s" => Duration::from_secs(value),
        "m" => Duration::from_secs(value.saturating_mul(60)),
        _ => return Err(format!("{text} has no unit of time: write 500ms, 10s or 5m")),
    };
    if duration.is_zero() { Err("it must be longer than nothing".to_owned()) } else { Ok(duration) }
}

/// An error with everything that it stems from, on one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some print their cause themselves.
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_need_a_unit_and_a_value() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("5m"), Ok(Duration::from_mins(5)));
        for wrong in ["10", "s", "", "1h30", "0s", "-1s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_causes_of_an_error_are_said_once_each() {
        let error = CliError::Start(std::io::Error::other("why"));
        assert_eq!(chain(&error), "cannot start: why");
    }
}
