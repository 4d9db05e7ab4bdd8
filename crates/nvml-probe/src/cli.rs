//! The command line.

mod gates;
mod run;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Parser, Subcommand};

use self::{
    gates::{Guard, UnloadNouveau, Wait},
    run::Run,
};
use crate::{
    device_nodes,
    divide::args::MigArgs,
    host::HostRoot,
    inject::{self, InjectError},
    nvml::{self, ChildError, ChildOptions},
    prepare::{self, PrepareError},
    publish::PublishError,
    runtime::args::Step,
    signal::Shutdown,
    start::{self, StartError},
    words::{chain, last_words},
};

/// The exit code that a shell reports for a process ended by SIGTERM. A gate that is terminated is not open and must
/// not exit 0.
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
    /// Report this node's GPUs and driver to its `GpuNode` until terminated.
    Run(Run),
    /// Wait until a fact is true on this node, then exit 0.
    #[command(subcommand)]
    Wait(Wait),
    /// Wait until no program uses a driver that an installation would replace; then exit 0 or become the given program.
    Guard(Guard),
    /// Copy this program and everything it needs to run in another image into a folder.
    Unpack {
        /// The folder.
        into: PathBuf,
    },
    /// Create the device nodes that programs need whenever the driver's container has loaded the driver, until
    /// terminated.
    DeviceNodes {
        /// Where the host's directories are mounted.
        #[arg(long, default_value = "/host")]
        host_root: PathBuf,
        /// Pause between two checks.
        #[arg(long, default_value = "1s", value_parser = duration)]
        interval: Duration,
    },
    /// Unload nouveau, the kernel's own driver for NVIDIA GPUs, once nothing uses it, then exit 0.
    UnloadNouveau(UnloadNouveau),
    /// Run a step of a toolkit pod around the configuration of the container runtime.
    Runtime {
        #[command(subcommand)]
        step: Step,
        /// The file whose text Kubernetes shows once the container has ended.
        #[arg(long, global = true, default_value = "/dev/termination-log")]
        termination_log: PathBuf,
    },
    /// Apply a MIG layout to this node's GPUs, then exit 0.
    Mig(MigArgs),
    /// Write a file for the next container.
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Content of the file.
        text: String,
    },
    /// Make a driver available in this container, then become the given program.
    Inject {
        /// The driver's root, mounted in this container.
        #[arg(long)]
        driver_root: PathBuf,
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Do nothing until terminated, then exit 0.
    Hold,
    /// Load NVML and answer queries. The probe starts this itself.
    #[command(hide = true)]
    NvmlChild(NvmlChild),
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

/// The program could not start, or its child could not continue.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The async runtime, the signal handlers or the path of this program is not available.
    #[error("cannot start")]
    Start(#[from] std::io::Error),
    /// No client for the API server can be created.
    #[error("cannot reach the API server")]
    Client(#[from] PublishError),
    /// The address cannot be listened on.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// A file for the next container cannot be written.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// Unpacking, or starting another image's program, failed.
    #[error(transparent)]
    Other(#[from] StartError),
    /// The driver cannot be made available in this container.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// The NVML child failed.
    #[error(transparent)]
    Child(#[from] ChildError),
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// Returns an error if the command cannot start. Later failures are retried.
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
            Command::Unpack { into } => {
                start::unpack(&into)?;
                return Ok(ExitCode::SUCCESS);
            }
            Command::Inject { driver_root, command } => {
                inject::inject(&driver_root, Path::new("/"))?;
                return Err(start::become_program(&command).into());
            }
            command => command,
        };
        // A single thread, the process' first: a child is tied to the thread that starts it, not to the process, so
        // that thread must live as long as the process does.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut shutdown = Shutdown::listen()?;
            match command {
                Command::Run(options) => options.run(&mut shutdown).await,
                Command::Wait(gate) => Ok(gate.pass(&mut shutdown).await),
                Command::Guard(gate) => Ok(gate.pass(&mut shutdown).await?),
                Command::DeviceNodes { host_root, interval } => {
                    let (host, own) = (HostRoot::new(host_root), HostRoot::new("/"));
                    tokio::select! {
                        () = device_nodes::keep(&host, &own, interval) => {}
                        () = shutdown.requested() => {}
                    }
                    Ok(ExitCode::SUCCESS)
                }
                Command::UnloadNouveau(step) => Ok(step.pass(&mut shutdown).await),
                Command::Runtime { step, termination_log } => Ok(match step.run(&mut shutdown).await {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => {
                        tracing::error!("{}", chain(&error));
                        last_words(&termination_log, &chain(&error));
                        ExitCode::FAILURE
                    }
                }),
                Command::Mig(options) => tokio::select! {
                    code = options.run() => Ok(code?),
                    () = shutdown.requested() => Ok(ExitCode::from(TERMINATED)),
                },
                Command::Hold
                | Command::NvmlChild(_)
                | Command::Write { .. }
                | Command::Unpack { .. }
                | Command::Inject { .. } => {
                    shutdown.requested().await;
                    Ok(ExitCode::SUCCESS)
                }
            }
        })
    }
}

/// Parses a duration such as `250ms`, `10s` or `5m`.
///
/// # Errors
/// Returns an error if the text is not a duration, or is zero.
pub fn duration(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let value: u64 = number.parse().map_err(|_| format!("invalid duration {text}: write 500ms, 10s or 5m"))?;
    let duration = match &text[number.len()..] {
        "ms" => Duration::from_millis(value),
        "s" => Duration::from_secs(value),
        "m" => Duration::from_secs(value.saturating_mul(60)),
        _ => return Err(format!("duration {text} has no unit: write 500ms, 10s or 5m")),
    };
    if duration.is_zero() { Err("the duration must be greater than zero".to_owned()) } else { Ok(duration) }
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
}
