//! The running cluster, as a test sees it.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, Result};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{
    audit::Audit, chart, control_plane, paths::Paths, pki, process::output, real_node::RealNode, state::State,
};

/// A handle on the cluster that `cargo xtask` started in this checkout.
///
/// What is not `async` here blocks: a second or two for most, up to half a minute for what waits for the node.
#[derive(Clone)]
pub struct Cluster {
    paths: Paths,
    state: State,
    client: Client,
}

impl Cluster {
    /// Connects to the running cluster.
    ///
    /// # Errors
    /// If none runs, with how to start one.
    pub async fn connect() -> Result<Self> {
        let paths = Paths::new();
        let state = State::load(&paths).filter(|state| control_plane::is_running(&paths, state)).context(
            "no cluster runs: `cargo xtask test` starts one for the tests, `cargo xtask up` one to work with",
        )?;
        let kubeconfig = Kubeconfig::read_from(paths.kubeconfig())?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self { client: Client::try_from(config)?, paths, state })
    }

    /// A client with all rights.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The API server's address, `https://127.0.0.1:PORT`.
    #[must_use]
    pub fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.state.api_port)
    }

    /// Writes a file with which a client has the rights of one of the chart's service accounts, for a day; of a pod's
    /// token, if a pod is given, which tells the API server the pod's node as well.
    pub(crate) fn service_account(&self, name: &str, pod: Option<&str>) -> Result<PathBuf> {
        let mut args = vec!["create", "token", name, "--namespace", chart::RELEASE, "--duration=24h"];
        args.extend(pod.iter().flat_map(|pod| ["--bound-object-kind=Pod", "--bound-object-name", pod]));
        let token = self.kubectl(&args)?;
        let file = self.paths.cluster().join(format!("{name}.kubeconfig"));
        pki::kubeconfig(
            &file,
            SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.state.api_port),
            &self.paths.cluster().join("pki/ca.crt"),
            token.trim(),
        )?;
        Ok(file)
    }

    pub(crate) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The file with which any client finds the cluster.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.paths.kubeconfig()
    }

    /// Where an operator listens that runs as a process of this machine.
    pub(crate) fn operator_port(&self) -> u16 {
        self.state.operator_port
    }

    /// The real nodes.
    #[must_use]
    pub fn nodes(&self) -> Vec<RealNode> {
        self.state.nodes.real().map(|id| RealNode::new(self.paths.clone(), self.state.clone(), id)).collect()
    }

    /// The namespace of the chart's release.
    #[must_use]
    pub fn namespace(&self) -> &'static str {
        chart::RELEASE
    }

    /// Runs kubectl and returns what it printed.
    ///
    /// # Errors
    /// If it fails, what it wrote to standard error.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        chart::kubectl(&self.paths, args)
    }

    /// Runs helm and returns what it printed. The chart lies in [`Cluster::chart`].
    ///
    /// # Errors
    /// If it fails, what it wrote to standard error.
    pub fn helm(&self, args: &[&str]) -> Result<String> {
        output(chart::helm(&self.paths).args(args))
    }

    /// The folder of the chart.
    #[must_use]
    pub fn chart(&self) -> PathBuf {
        self.paths.root.join("charts/gpu-operator")
    }

    /// A file with the values that the chart needs in this cluster.
    #[must_use]
    pub fn values(&self) -> PathBuf {
        chart::values_file(&self.paths)
    }

    /// The file of the example policy.
    #[must_use]
    pub fn policy(&self) -> PathBuf {
        chart::policy_file(&self.paths)
    }

    /// Installs the chart as `cargo xtask up` does, or upgrades it, and waits until its pods are available.
    ///
    /// # Errors
    /// If helm fails, with its words and the pods.
    pub fn install_chart(&self) -> Result<()> {
        chart::install(&self.paths, &self.state)
    }

    /// The API server's audit log.
    #[must_use]
    pub fn audit(&self) -> Audit {
        Audit::new(self.paths.logs().join("audit.log"))
    }

    /// All that tells why a test failed on these nodes, as text: policies and the operator's log; and of each node its pods,
    /// Events, status and logs.
    #[must_use]
    pub fn diagnosis(&self, nodes: &[RealNode]) -> String {
        chart::diagnosis(&self.paths, nodes.iter().map(RealNode::name))
    }

    /// A command that is not [`Cluster::kubectl`] or [`Cluster::helm`], with the cluster's kubeconfig in its environment.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("KUBECONFIG", self.paths.kubeconfig());
        command
    }
}
