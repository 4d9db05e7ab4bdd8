//! The command line.

mod error;
mod gates;
mod mig;
mod run;
mod runtime;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Parser, Subcommand};

use self::{
    gates::{Guard, UnloadNouveau, Wait},
    mig::MigArgs,
    run::Run,
    runtime::RuntimeStep,
};
use crate::{
    host::HostRoot,
    nvml::child::{self, ChildOptions},
    operands::{
        device_nodes,
        inject::{self, Needs},
        unpack, write_file,
    },
    process::{EXIT_TERMINATED, Shutdown, become_program, error_chain, parse_duration, write_termination_log},
};

pub use self::error::CliError;

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
        #[arg(long, default_value = "1s", value_parser = parse_duration)]
        interval: Duration,
    },
    /// Unload nouveau, the kernel's own driver for NVIDIA GPUs, once nothing uses it, then exit 0.
    UnloadNouveau(UnloadNouveau),
    /// Run a step of a toolkit pod around the configuration of the container runtime.
    Runtime {
        #[command(subcommand)]
        step: RuntimeStep,
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
        /// Fail unless the driver has CUDA and the programs of its MPS, and make these programs available too.
        #[arg(long)]
        mps: bool,
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

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// Returns an error if the command cannot start. Later failures are retried.
    pub fn execute(self) -> Result<ExitCode, CliError> {
        let command = match self.command {
            Command::NvmlChild(NvmlChild { parent, chroot, library }) => {
                child::run(&ChildOptions { parent, chroot, library })?;
                return Ok(ExitCode::SUCCESS);
            }
            Command::Write { path, text } => {
                write_file::write(&path, &text)?;
                return Ok(ExitCode::SUCCESS);
            }
            Command::Unpack { into } => {
                unpack::unpack(&into)?;
                return Ok(ExitCode::SUCCESS);
            }
            Command::Inject { driver_root, mps, command } => {
                let needs = if mps { Needs::Mps } else { Needs::Nvml };
                inject::inject(&driver_root, Path::new("/"), needs)?;
                return Err(become_program(&command).into());
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
                        tracing::error!("{}", error_chain(&error));
                        write_termination_log(&termination_log, &error_chain(&error));
                        ExitCode::FAILURE
                    }
                }),
                Command::Mig(options) => tokio::select! {
                    code = options.run() => Ok(code?),
                    () = shutdown.requested() => Ok(ExitCode::from(EXIT_TERMINATED)),
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
