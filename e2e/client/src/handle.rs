//! A handle on the running cluster, for tests.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, Result};
use cluster::{chart, clients, control_plane, diagnosis::diagnosis, node::real_node::RealNode, pki, state::State};
use harness::{paths::Paths, process::output};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::audit::Audit;

/// A handle on the cluster that `cargo xtask` started in this checkout.
///
/// Functions that are not `async` block: most for a second or two, those that wait for a node for up to half a minute.
#[derive(Clone)]
pub struct Cluster {
    paths: Paths,
    state: State,
    client: Client,
}

impl Cluster {
    /// Connects to the running cluster.
    pub async fn connect() -> Result<Self> {
        Self::at(Paths::new()).await
    }

    /// Connects to the cluster for tests on simulated nodes. If none was started for them, that is the one of [`Self::connect`].
    pub async fn connect_to_simulated() -> Result<Self> {
        let paths = Paths::simulated();
        let exists = State::load(&paths).is_some();
        Self::at(if exists { paths } else { Paths::new() }).await
    }

    async fn at(paths: Paths) -> Result<Self> {
        let state = State::load(&paths).filter(|state| control_plane::is_running(&paths, state)).context(
            "no cluster is running: `cargo xtask test` starts one for the tests, `cargo xtask up` starts one to work with",
        )?;
        let kubeconfig = Kubeconfig::read_from(paths.kubeconfig())?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self { client: Client::try_from(config)?, paths, state })
    }

    /// Returns a client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the API server's URL, `https://127.0.0.1:PORT`.
    pub fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.state.api_port)
    }

    /// Writes a kubeconfig with a token of one of the chart's service accounts, valid for a day, and returns its path.
    /// If a pod is given, the token is bound to it, which also gives the API server the pod's node.
    pub fn service_account_kubeconfig(&self, name: &str, pod: Option<&str>) -> Result<PathBuf> {
        let mut args = vec!["create", "token", name, "--namespace", chart::NAMESPACE, "--duration=24h"];
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

    /// Returns the paths of its checkout.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Returns the path of the kubeconfig with all rights.
    pub fn kubeconfig(&self) -> PathBuf {
        self.paths.kubeconfig()
    }

    /// Returns the port for an operator that runs as a process of this machine, and that for a second one.
    pub fn operator_ports(&self) -> [u16; 2] {
        [self.state.operator_port, self.state.standby_port]
    }

    pub fn nodes(&self) -> Vec<RealNode> {
        self.state.nodes.real().map(|id| RealNode::new(self.paths.clone(), self.state.clone(), id)).collect()
    }

    /// Returns the namespace of the chart's release.
    pub fn namespace(&self) -> &'static str {
        chart::NAMESPACE
    }

    /// Returns the name of the chart's release.
    pub fn release(&self) -> &'static str {
        chart::RELEASE
    }

    /// Runs kubectl and returns its standard output.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        clients::kubectl(&self.paths, args)
    }

    /// Runs helm and returns its standard output. The chart is in [`Cluster::chart`].
    pub fn helm(&self, args: &[&str]) -> Result<String> {
        output(clients::helm(&self.paths).args(args))
    }

    /// Runs a shell script of this checkout with the cluster's kubectl, and returns its standard output.
    pub fn script(&self, path: &str, args: &[&str]) -> Result<String> {
        output(clients::script(&self.paths, path)?.args(args))
    }

    /// Returns the folder of the chart.
    pub fn chart(&self) -> PathBuf {
        self.paths.root.join("charts/gpu-operator")
    }

    /// Returns the file with the chart's values for this cluster.
    pub fn values(&self) -> PathBuf {
        chart::values_file(&self.paths)
    }

    /// Returns the file of the example policy.
    pub fn policy(&self) -> PathBuf {
        chart::policy_file(&self.paths)
    }

    /// Installs or upgrades the chart as `cargo xtask up` does, and waits until its pods are available.
    pub fn install_chart(&self) -> Result<()> {
        chart::install(&self.paths, &self.state)
    }

    /// Returns the API server's audit log.
    pub fn audit(&self) -> Audit {
        Audit::new(self.paths.logs().join("audit.log"))
    }

    /// Returns this audit log, and that of the cluster for tests on simulated nodes if there was one.
    pub fn audits(&self) -> Vec<Audit> {
        let simulated = Audit::new(Paths::simulated().logs().join("audit.log"));
        [self.audit()].into_iter().chain(simulated.file().exists().then_some(simulated)).collect()
    }

    /// Returns what helps to find out why a test failed on these nodes: policies and the operator's log; and for each
    /// node its pods, Events, status and logs.
    pub fn diagnosis(&self, nodes: &[RealNode]) -> String {
        diagnosis(&self.paths, nodes.iter().map(RealNode::name))
    }

    /// Returns a command with the cluster's kubeconfig in its environment, for programs other than kubectl and helm.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("KUBECONFIG", self.paths.kubeconfig());
        command
    }
}
