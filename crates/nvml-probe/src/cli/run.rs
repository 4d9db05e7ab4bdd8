//! `run`: the agent and its parts.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use gpu_host::{
    nvml::supervisor::{Limits, Supervisor, child_command},
    process::{Shutdown, parse_duration},
    root::HostRoot,
};
use tokio::{net::TcpListener, sync::watch};

use super::error::CliError;
use crate::{
    agent::{
        Agent, Settings, endpoints::Telemetry, heartbeat::Heartbeat, metrics::Metrics, pod_metrics, stall_timeout,
    },
    report::{
        gpu_node::{GpuNodeView, watch_gpu_node},
        publish::{Publisher, client},
    },
};

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
    /// Serve the readings of GPUs also under the names of dcgm-exporter.
    #[arg(long)]
    dcgm_metrics: bool,
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
        let metrics =
            if self.dcgm_metrics { Metrics::with_dcgm_names(&self.node_name) } else { Metrics::new(&self.node_name) };
        let telemetry = Telemetry { heartbeat: Arc::new(heartbeat), metrics: Arc::new(metrics) };
        if let Some(address) = self.listen {
            serve(address, telemetry.clone()).await.map_err(|error| CliError::Listen(address, error))?;
        }
        let limits = Limits { answer: self.nvml_deadline, ..Limits::default() };
        let supervisor = Supervisor::new(child_command(std::env::current_exe()?), limits);
        let (sender, seen) = watch::channel(GpuNodeView::Unknown);
        let follower = tokio::spawn(watch_gpu_node(client.clone(), self.node_name.clone(), sender));
        let host = HostRoot::new(self.host_root);
        let pods = self.pod_metrics.then(|| {
            tokio::spawn(pod_metrics::follow(host.clone(), self.kubelet_root.clone(), Arc::clone(&telemetry.metrics)))
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

/// Listens, and serves for as long as the async runtime lives.
async fn serve(address: SocketAddr, telemetry: Telemetry) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "serving /livez, /readyz and /metrics");
    tokio::spawn(gpu_operator_common::admin::serve(listener, telemetry));
    Ok(())
}
