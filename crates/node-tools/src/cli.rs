//! The subcommands.

mod gates;
mod runtime;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Subcommand};
use gpu_host::{
    nvml::supervisor::{Limits, Supervisor, child_command},
    observe::driver::CONTAINER_ROOT,
    process::{
        EXIT_TERMINATED, become_program, error_chain, parse_duration, run_on_this_thread, write_termination_log,
    },
    root::HostRoot,
};
use gpu_operator_common::mig_layout::MigLayout;

use self::{
    gates::{Guard, UnloadNouveau, Wait},
    runtime::RuntimeStep,
};
use crate::{
    mig::apply_layout,
    operands::{
        device_nodes, files,
        inject::{self, Needs},
    },
};

pub use gates::ToolError;

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
    /// Unload nouveau and nova, the kernel's own drivers for NVIDIA GPUs, once nothing uses them, then exit 0.
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
            Self::Write { path, text } => files::write(&path, &text)?,
            Self::Unpack { into } => files::unpack(&into)?,
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

/// The MIG layout to apply, and how.
#[derive(Debug, Args)]
pub struct MigArgs {
    /// Where the host's directories are mounted.
    #[arg(long, default_value = "/host")]
    host_root: PathBuf,
    /// The driver's root on the host.
    #[arg(long, default_value = CONTAINER_ROOT)]
    driver_root: String,
    /// The number of instances of each profile, as a JSON object: by index (the order of PCI addresses, from 0) for single
    /// GPUs, and for all others: `{"devices": {"0": {"1g.10gb": 7}}, "others": {"3g.40gb": 2}}`. MIG is disabled on GPUs
    /// without a profile.
    #[arg(long, value_parser = layout)]
    layout: MigLayout,
    /// How long NVML may take for one step.
    #[arg(long, default_value = "2m", value_parser = parse_duration)]
    nvml_deadline: Duration,
    /// Load NVML without changing root into the driver's root.
    #[arg(long)]
    no_chroot: bool,
    /// The file whose text Kubernetes shows once the container has ended.
    #[arg(long, default_value = "/dev/termination-log")]
    termination_log: PathBuf,
}

impl MigArgs {
    /// Applies the layout, and writes an obstacle to the container's termination log.
    pub async fn run(self) -> std::io::Result<ExitCode> {
        let Self { host_root, driver_root, layout, nvml_deadline, no_chroot, termination_log } = self;
        let limits = Limits { answer: nvml_deadline, first_pause: Duration::ZERO, ..Limits::default() };
        let mut supervisor = Supervisor::new(child_command(std::env::current_exe()?), limits);
        let outcome = apply_layout(&HostRoot::new(host_root), !no_chroot, &driver_root, &layout, &mut supervisor).await;
        // No process of this container may hold the driver while the next container starts.
        if let Err(stuck) = supervisor.end().await {
            tracing::warn!("{stuck}");
        }
        Ok(match outcome {
            Ok(()) => {
                tracing::info!(?layout, "the MIG layout is applied");
                ExitCode::SUCCESS
            }
            Err(error) => {
                tracing::error!("{}", error_chain(&error));
                write_termination_log(&termination_log, &error_chain(&error));
                ExitCode::FAILURE
            }
        })
    }
}

fn layout(text: &str) -> Result<MigLayout, String> {
    serde_json::from_str(text).map_err(|error| format!("write {{\"others\": {{\"1g.10gb\": 7}}}}: {error}"))
}
