//! `run`: the agent, and what it is made of.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use tokio::{net::TcpListener, sync::watch};

use super::{CliError, duration};
use crate::{
    admin::Admin,
    agent::{Agent, Settings, patience},
    child::{Limits, Supervisor, this_program},
    host::HostRoot,
    metrics::Metrics,
    publish::{Publisher, Seen, client, follow},
    pulse::Pulse,
    signal::Shutdown,
};

#[derive(Debug, Args)]
pub struct Run {
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

impl Run {
    /// Reports until asked to end.
    pub async fn run(self, shutdown: &mut Shutdown) -> Result<ExitCode, CliError> {
        tracing::info!(node = self.node_name, host_root = %self.host_root.display(), "{} begins", crate::USER_AGENT);
        let client = client().await?;
        let pulse = Pulse::new(patience(self.interval, self.nvml_deadline));
        let admin = Admin { pulse: Arc::new(pulse), metrics: Arc::new(Metrics::new(&self.node_name)) };
        if let Some(address) = self.listen {
            serve(address, admin.clone()).await.map_err(|error| CliError::Listen(address, error))?;
        }
        let limits = Limits { answer: self.nvml_deadline, ..Limits::default() };
        let supervisor = Supervisor::new(this_program(std::env::current_exe()?), limits);
        let (sender, seen) = watch::channel(Seen::Unknown);
        let follower = tokio::spawn(follow(client.clone(), self.node_name.clone(), sender));
        let settings = Settings {
            host: HostRoot::new(self.host_root),
            kernel_log: self.kernel_log,
            interval: self.interval,
            chroot: !self.no_chroot,
        };
        let publisher = Publisher::new(client, &self.node_name);
        Agent::new(settings, supervisor, publisher, seen, admin).run(shutdown.requested()).await;
        follower.abort();
        Ok(ExitCode::SUCCESS)
    }
}

/// Listens, and answers for as long as the runtime lives.
async fn serve(address: SocketAddr, admin: Admin) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "/livez, /readyz and /metrics are served");
    tokio::spawn(gpu_operator_common::admin::serve(listener, admin));
    Ok(())
}
