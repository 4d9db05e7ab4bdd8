//! The command line, and the wiring of the process.

use std::{net::SocketAddr, sync::Arc};

use clap::{Parser, Subcommand};
use futures::{StreamExt, stream::FuturesUnordered};
use gpu_operator_common::admin::serve;
use gpu_operator_plan::{
    catalogue::{Catalogue, CatalogueError},
    settings::Settings,
};
use kube::{Client, Config, core::Duration};
use thiserror::Error;
use tokio::{net::TcpListener, signal::unix};

use crate::{
    admin::Admin,
    check,
    client::bounded,
    election::{Election, Leadership},
    error::Error as RequestError,
    installation_watch,
    reconcile::Loop,
    uninstall::{Policies, Uninstall, UninstallError},
    watch::Mirrors,
};

/// Kubernetes operator for the NVIDIA GPU node stack of a mixed fleet.
#[derive(Debug, Parser)]
#[command(name = "gpu-operator", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the operator.
    Run(Run),
    /// Check whether operator, detector and probes of the installed chart are ready, and its CRDs not outdated. Waits for a minute at most.
    Check {
        /// Namespace of the operator.
        #[arg(long, env = "POD_NAMESPACE")]
        namespace: String,
    },
    /// Remove the operator, and what needs one from nodes and policies: the chart's hook for `helm uninstall`.
    Uninstall {
        /// Namespace of the operator.
        #[arg(long, env = "POD_NAMESPACE")]
        namespace: String,
        /// Name of the operator's Deployment and of its Lease.
        #[arg(long)]
        operator: String,
        /// Name of this process in the Lease.
        #[arg(long, env = "POD_NAME")]
        identity: String,
        /// Whether policies stay, with what runs on their nodes, or are deleted first, so that the operator leaves these nodes.
        #[arg(long, value_enum, default_value_t = Policies::Keep)]
        policies: Policies,
        /// How long to wait, such as 4m.
        #[arg(long, default_value = "4m")]
        within: Duration,
    },
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Namespace of the operator and of all objects that it creates.
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: String,
    /// Image of nvml-probe, also used for the init containers that gate the operands.
    #[arg(long)]
    probe_image: String,
    /// Pull policy for the nvml-probe image.
    #[arg(long, default_value = "IfNotPresent")]
    probe_image_pull_policy: String,
    /// Pull secret for the nvml-probe image; may be repeated.
    #[arg(long = "image-pull-secret")]
    image_pull_secrets: Vec<String>,
    /// Kubelet's directory on the hosts (its `--root-dir`); defaults to the one of each node's distribution.
    #[arg(long)]
    kubelet_root: Option<String>,
    /// Evict pods if a policy requests it: the operator has the right to.
    #[arg(long)]
    evict_pods: bool,
    /// Address of /livez, /readyz and /metrics.
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Name of the Lease by which one of several replicas is elected to write. Without it, this process must be the only one.
    #[arg(long, requires = "identity")]
    lease: Option<String>,
    /// Name of this replica in the Lease, which no other one may have.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// Name of a ValidatingAdmissionPolicy of the chart and of its binding, to show in a metric whether it is enforced; may be repeated.
    #[arg(long = "admission-policy")]
    admission_policies: Vec<String>,
}

/// A reason why the operator cannot run.
#[derive(Debug, Error)]
pub enum CliError {
    /// The client configuration, from kubeconfig or service account, cannot be loaded.
    #[error("failed to load the Kubernetes client configuration: {0}")]
    Config(#[from] kube::config::InferConfigError),
    /// The client cannot be created.
    #[error("failed to create the Kubernetes client: {0}")]
    Client(#[from] kube::Error),
    /// The user agent is not a valid header value.
    #[error("invalid user agent: {0}")]
    UserAgent(#[from] http::header::InvalidHeaderValue),
    /// The built-in catalogue is invalid.
    #[error("failed to read the catalogue: {0}")]
    Catalogue(#[from] CatalogueError),
    #[error("failed to listen on {0}: {1}")]
    Listen(SocketAddr, #[source] std::io::Error),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("{}", .0.join("; "))]
    Faults(Vec<String>),
    #[error(transparent)]
    Uninstall(#[from] UninstallError),
}

impl Cli {
    /// Runs the command until it ends; `run` ends on SIGTERM or Ctrl-C.
    pub async fn run(self) -> Result<(), CliError> {
        match self.command {
            Command::Run(run) => run.run().await?,
            Command::Uninstall { namespace, operator, identity, policies, within } => {
                let client = &bounded(client().await?);
                let (namespace, operator, identity) = (&*namespace, &*operator, &*identity);
                Uninstall { client, namespace, operator, identity, policies }.run(within.into()).await?;
            }
            Command::Check { namespace } => {
                let faults = check::lasting_faults(&bounded(client().await?), &namespace).await?;
                if !faults.is_empty() {
                    return Err(CliError::Faults(faults));
                }
                tracing::info!("operator, detector and probes are ready, and the CRDs are not outdated");
            }
        }
        Ok(())
    }
}

async fn client() -> Result<Client, CliError> {
    let mut config = Config::infer().await?;
    let agent = format!("gpu-operator/{}", env!("CARGO_PKG_VERSION"));
    // The loop decides when to try again, and needs the answer for that: an eviction that a budget forbids is answered with 429.
    config.default_retry = false;
    config.headers.push((http::header::USER_AGENT, agent.parse()?));
    Ok(Client::try_from(config)?)
}

impl Run {
    async fn run(self) -> Result<(), CliError> {
        let Self {
            namespace,
            probe_image,
            probe_image_pull_policy,
            image_pull_secrets,
            kubelet_root,
            evict_pods,
            listen,
            lease,
            identity,
            admission_policies,
        } = self;
        // First, because process 1 of a container ignores signals for which it has installed no handler.
        let mut term = unix::signal(unix::SignalKind::terminate()).map_err(|error| CliError::Listen(listen, error))?;
        let mut int = unix::signal(unix::SignalKind::interrupt()).map_err(|error| CliError::Listen(listen, error))?;
        let client = bounded(client().await?);
        let elect = |(lease, identity): (String, String)| Election::new(client.clone(), &namespace, &lease, &identity);
        let mut election = lease.zip(identity).map(elect);
        let leadership = election.as_ref().map_or_else(Leadership::sole, Election::leadership);
        let settings = Settings {
            namespace: namespace.clone(),
            probe_image,
            probe_pull_policy: probe_image_pull_policy,
            image_pull_secrets,
            kubelet_root,
            evicts_pods: evict_pods,
            quiets: false,
        };
        let (reconcile, mut tasks) =
            Loop::new(&client, settings, Catalogue::builtin()?, leadership, Arc::<Mirrors>::default());
        let Loop { mirrors, metrics, progress, .. } = &reconcile;
        let (mirrors, metrics, progress) = (Arc::clone(mirrors), Arc::clone(metrics), Arc::clone(progress));
        tasks.extend(installation_watch::watch_admission_policies(&client, admission_policies, &metrics));
        let admin = Admin { mirrors: Arc::clone(&mirrors), metrics, progress };
        let listener = TcpListener::bind(listen).await.map_err(|error| CliError::Listen(listen, error))?;
        let served = serve(listener, admin);
        tracing::info!(version = env!("CARGO_PKG_VERSION"), %listen, "gpu-operator started");
        let elected = async {
            match &mut election {
                Some(election) => election.run(|| mirrors.may_lead()).await,
                None => std::future::pending().await,
            }
        };
        // Unlike `join_all`, it polls only those that something has happened to.
        let followed = tasks.into_iter().collect::<FuturesUnordered<_>>().collect::<()>();
        // Every write is complete in itself, so stopping at any time loses nothing.
        let outcome = tokio::select! {
            () = followed => Ok(()),
            () = reconcile.run() => Ok(()),
            () = elected => Ok(()),
            outcome = served => outcome.map_err(|error| CliError::Listen(listen, error)),
            _ = term.recv() => Ok(()),
            _ = int.recv() => Ok(()),
        };
        // Nothing is written any more: what the branches above did is dropped.
        if let Some(election) = election {
            election.release().await;
        }
        tracing::info!("gpu-operator stopped");
        outcome
    }
}
