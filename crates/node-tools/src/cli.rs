//! The subcommands.

mod error;
mod gates;
mod mig;
mod runtime;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Subcommand;
use gpu_host::{
    process::{EXIT_TERMINATED, become_program, parse_duration, run_on_this_thread},
    root::HostRoot,
};

use self::{
    gates::{Guard, UnloadNouveau, Wait},
    mig::MigArgs,
    runtime::RuntimeStep,
};
use crate::operands::{
    device_nodes,
    inject::{self, Needs},
    unpack, write_file,
};

pub use self::error::ToolError;

/// A tool that a pod runs on the node.
#[derive(Debug, Subcommand)]
pub enum Tool {
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
        /// The step.
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
}

impl Tool {
    /// Runs the tool on the calling thread, which must be the first of the process.
    pub fn run(self) -> Result<ExitCode, ToolError> {
        match self {
            Self::Write { path, text } => write_file::write(&path, &text)?,
            Self::Unpack { into } => unpack::unpack(&into)?,
            Self::Inject { driver_root, mps, command } => {
                let needs = if mps { Needs::Mps } else { Needs::Nvml };
                inject::inject(&driver_root, Path::new("/"), needs)?;
                return Err(become_program(&command).into());
            }
            Self::Wait(gate) => return run_on_this_thread(async |shutdown| Ok(gate.pass(shutdown).await)),
            Self::Guard(gate) => return run_on_this_thread(async |shutdown| gate.pass(shutdown).await),
            Self::UnloadNouveau(step) => return run_on_this_thread(async |shutdown| Ok(step.pass(shutdown).await)),
            Self::DeviceNodes { host_root, interval } => run_on_this_thread(async |shutdown| {
                let (host, own) = (HostRoot::new(host_root), HostRoot::new("/"));
                tokio::select! {
                    () = device_nodes::keep(&host, &own, interval) => {}
                    () = shutdown.requested() => {}
                }
                Ok::<_, ToolError>(())
            })?,
            Self::Runtime { step, termination_log } => {
                return run_on_this_thread(async |shutdown| Ok(step.pass(&termination_log, shutdown).await));
            }
            Self::Mig(options) => {
                return run_on_this_thread(async |shutdown| {
                    tokio::select! {
                        code = options.run() => Ok(code?),
                        () = shutdown.requested() => Ok(ExitCode::from(EXIT_TERMINATED)),
                    }
                });
            }
            Self::Hold => run_on_this_thread(async |shutdown| {
                shutdown.requested().await;
                Ok::<_, ToolError>(())
            })?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
