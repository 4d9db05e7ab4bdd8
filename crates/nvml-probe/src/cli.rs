//! The command line: `run`, the agent and its parts, and `detect`, the detector.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::{Args, Parser, Subcommand};
use gpu_host::{
    cuda,
    nvml::{
        child::{self, ChildError, ChildOptions},
        supervisor::{Limits, Supervisor, child_command},
    },
    process::{Shutdown, parse_duration, run_on_this_thread},
    root::HostRoot,
};
use node_tools::cli::{Tool, ToolError};
use tokio::{net::TcpListener, sync::watch};

use crate::{
    agent::{
        Agent, Settings,
        metrics::Metrics,
        stall_timeout,
        telemetry::{self, Heartbeat, Telemetry},
    },
    detector::Detector,
    report::gpu_node::{Announcer, GpuNodeView, PublishError, Publisher, client, watch_gpu_node},
};

/// The node agent of the GPU operator, and the tools of its pods.
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
    /// Create this node's `GpuNode` as soon as the node has a GPU, until terminated.
    Detect(Detect),
    #[command(flatten)]
    Tool(Tool),
    /// Load NVML and answer queries. The probe starts this itself.
    #[command(hide = true)]
    NvmlChild(ChildOptions),
    /// Load CUDA and print whether it can be initialised. The probe starts this itself.
    #[command(hide = true)]
    CudaChild(ChildOptions),
}

impl Cli {
    /// Runs the command.
    pub fn execute(self) -> Result<ExitCode, CliError> {
        match self.command {
            Command::Run(options) => run_on_this_thread(async |shutdown| options.run(shutdown).await),
            Command::Detect(options) => run_on_this_thread(async |shutdown| options.run(shutdown).await),
            Command::Tool(tool) => Ok(tool.run()?),
            Command::NvmlChild(options) => Ok(child::run(&options).map(|()| ExitCode::SUCCESS)?),
            Command::CudaChild(options) => Ok(cuda::run(&options).map(|()| ExitCode::SUCCESS)?),
        }
    }
}

#[derive(Debug, Args)]
pub struct Detect {
    /// Name of the node that this runs on.
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// The directory that contains the host's /sys.
    #[arg(long, default_value = "/")]
    host_root: PathBuf,
    /// Pause between two looks at the PCI bus.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    interval: Duration,
}

impl Detect {
    /// Detects GPUs until terminated.
    pub async fn run(self, shutdown: &mut Shutdown) -> Result<ExitCode, CliError> {
        tracing::info!(node = self.node_name, "{} detects GPUs", crate::USER_AGENT);
        let announcer = Announcer::new(client().await?, &self.node_name);
        let (host, interval) = (HostRoot::new(self.host_root), self.interval);
        Detector { host, interval, announcer }.run(shutdown.requested()).await;
        Ok(ExitCode::SUCCESS)
    }
}

/// The program could not start, or its child could not continue.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error("cannot start")]
    Start(#[from] std::io::Error),
    #[error("cannot reach the API server")]
    Client(#[from] PublishError),
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    #[error(transparent)]
    Child(#[from] ChildError),
    #[error(transparent)]
    Tool(#[from] ToolError),
}

#[derive(Debug, Args)]
pub struct Run {
    /// Name of the node that this runs on.
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Where the host's / is mounted.
    #[arg(long, default_value = "/host")]
    host_root: PathBuf,
    /// Pause between two looks at the node.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    interval: Duration,
    /// How long NVML may take to answer before its process is killed.
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    nvml_deadline: Duration,
    /// The kernel log, which records XIDs that occur while NVML is not queried. Optional: without it, XIDs come from
    /// NVML only.
    #[arg(long, env = "KERNEL_LOG", default_value = "/dev/kmsg")]
    kernel_log: PathBuf,
    /// Kubelet's directory on the host, with its pod resources socket. Without it, the directories of known distributions are searched.
    #[arg(long)]
    kubelet_root: Option<String>,
    /// Serve metrics that name the pods that have GPUs.
    #[arg(long)]
    pod_metrics: bool,
    /// Load NVML without changing root into the driver's root. For a probe that does not run in a container.
    #[arg(long)]
    no_chroot: bool,
    /// Address of /livez, /readyz and /metrics. Nothing is served without it.
    #[arg(long)]
    listen: Option<SocketAddr>,
}

impl Run {
    /// Reports until terminated.
    pub async fn run(self, shutdown: &mut Shutdown) -> Result<ExitCode, CliError> {
        tracing::info!(node = self.node_name, host_root = %self.host_root.display(), "{} starts", crate::USER_AGENT);
        let client = client().await?;
        let heartbeat = Heartbeat::new(stall_timeout(self.interval, self.nvml_deadline));
        let telemetry = Telemetry { heartbeat: Arc::new(heartbeat), metrics: Arc::new(Metrics::new(&self.node_name)) };
        if let Some(address) = self.listen {
            serve(address, telemetry.clone()).await.map_err(|error| CliError::Listen(address, error))?;
        }
        let limits = Limits { answer: self.nvml_deadline, ..Limits::default() };
        let supervisor = Supervisor::new(child_command(std::env::current_exe()?), limits);
        let (sender, seen) = watch::channel(GpuNodeView::Unknown);
        let follower = tokio::spawn(watch_gpu_node(client.clone(), self.node_name.clone(), sender));
        let host = HostRoot::new(self.host_root);
        let pods = self.pod_metrics.then(|| {
            tokio::spawn(telemetry::follow_pods(
                host.clone(),
                self.kubelet_root.clone(),
                Arc::clone(&telemetry.metrics),
            ))
        });
        let settings = Settings {
            host,
            kernel_log: self.kernel_log,
            kubelet_root: self.kubelet_root,
            interval: self.interval,
            chroot: !self.no_chroot,
        };
        let publisher = Publisher::new(client, &self.node_name);
        Agent::new(settings, supervisor, publisher, seen, telemetry).run(shutdown.requested()).await;
        follower.abort();
        if let Some(pods) = pods {
            pods.abort();
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn serve(address: SocketAddr, telemetry: Telemetry) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "serving /livez, /readyz and /metrics");
    tokio::spawn(gpu_operator_common::admin::serve(listener, telemetry));
    Ok(())
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
    fn the_chart_sets_existing_flags_only() {
        for (command, expected, template) in [
            ("run", "pod-metrics", include_str!("../../../charts/gpu-operator/templates/probe-daemonset.yaml")),
            ("detect", "interval", include_str!("../../../charts/gpu-operator/templates/detector-daemonset.yaml")),
        ] {
            let mut program = Cli::command();
            let command = program.find_subcommand_mut(command).unwrap();
            let known: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
            let set: Vec<_> = template.lines().filter_map(|line| line.trim().strip_prefix("- --")).collect();
            assert!(set.contains(&expected), "{set:?}");
            for flag in set {
                assert!(known.contains(&flag), "{flag} is not one of {known:?}");
            }
        }
    }
}
