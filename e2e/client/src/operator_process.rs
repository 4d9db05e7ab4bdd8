//! The operator as a process of this machine, with the arguments of the chart's Deployment and the rights of its service
//! account. It can be killed at any time, and its usage can be measured.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use cluster::{
    chart::NAMESPACE,
    clients::{self, OPERATOR_PROCESS, STANDBY_PROCESS, kubectl},
    state::State,
};
use harness::{files::tail, paths::Paths, records::records, usage::Usage, wait::poll};
use k8s_openapi::api::apps::v1::Deployment;

use super::handle::Cluster;

const DEPLOYMENT: &str = "deployment/nodestack-gpu-operator";
/// The environment variable with the name of a replica in the Lease.
const IDENTITY: &str = "POD_NAME";

/// The operator, running outside the cluster instead of its Deployment.
#[derive(Debug)]
pub struct OperatorProcess {
    paths: Paths,
    /// The name of its record, and in the Lease.
    name: &'static str,
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    kubeconfig: PathBuf,
    listen: SocketAddr,
}

impl OperatorProcess {
    /// Scales the Deployment to zero and starts a build of the operator instead. Stops an operator that an earlier run has left behind.
    pub fn start(cluster: &Cluster, program: &Path) -> Result<Self> {
        let paths = cluster.paths().clone();
        let text = kubectl(&paths, &["get", DEPLOYMENT, "--namespace", NAMESPACE, "-o", "json"])?;
        let deployment: Deployment = serde_json::from_str(&text).context("reading the operator's Deployment")?;
        let (mut args, mut env) = invocation(&deployment)?;
        // As a process of the machine it uses the machine's network, and gets a port on loopback.
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, cluster.operator_ports()[0]));
        *listen_address(&mut args)? = listen.to_string();
        clients::stop_process(&paths, STANDBY_PROCESS)?;
        clients::stop_process(&paths, OPERATOR_PROCESS)?;
        scale_to_zero(&paths)?;
        let kubeconfig = cluster.service_account_kubeconfig("nodestack-gpu-operator", None)?;
        // In a pod these variables have the API server's address; here it is in the kubeconfig.
        env.retain(|(name, _)| !name.starts_with("KUBERNETES_SERVICE_") && name != IDENTITY);
        let operator =
            Self { paths, name: OPERATOR_PROCESS, program: program.to_owned(), args, env, kubeconfig, listen };
        operator.start_again()?;
        Ok(operator)
    }

    /// Starts a second operator beside it, and waits until it is ready.
    pub fn standby(&self, cluster: &Cluster) -> Result<Self> {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, cluster.operator_ports()[1]));
        let mut args = self.args.clone();
        *listen_address(&mut args)? = listen.to_string();
        let (paths, program) = (self.paths.clone(), self.program.clone());
        let (env, kubeconfig) = (self.env.clone(), self.kubeconfig.clone());
        let standby = Self { paths, name: STANDBY_PROCESS, program, args, env, kubeconfig, listen };
        standby.start_again()?;
        Ok(standby)
    }

    /// Returns its name in the Lease.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Starts the operator again after it has ended, and waits until it is ready.
    pub fn start_again(&self) -> Result<()> {
        self.launch()?;
        self.wait_ready()
    }

    /// Starts the operator again after it has ended, without waiting for it.
    pub fn launch(&self) -> Result<()> {
        let records = records(&self.paths);
        if records.alive(self.name).is_some() {
            bail!("{} is already running", self.name);
        }
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env.iter().cloned());
        command.env("KUBECONFIG", &self.kubeconfig).env(IDENTITY, self.name);
        records
            .spawn(self.name, &mut command, &self.log())
            .with_context(|| format!("{} (run cargo build first)", self.program.display()))
    }

    fn wait_ready(&self) -> Result<()> {
        poll("the operator's readiness", Duration::from_mins(3), || {
            if records(&self.paths).alive(self.name).is_none() {
                bail!("the operator ended; the end of its log:\n{}", tail(&self.log(), 3_000));
            }
            Ok(check_ready(self.listen).map_err(|error| format!("{error:#}")))
        })
    }

    /// Kills the operator (SIGKILL).
    pub fn kill(&self) -> Result<()> {
        records(&self.paths).stop(self.name, Duration::ZERO)
    }

    /// Suspends the operator (SIGSTOP).
    pub fn suspend(&self) -> Result<()> {
        records(&self.paths).suspend(self.name)
    }

    /// Lets a suspended operator continue (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        records(&self.paths).resume(self.name)
    }

    /// Stops the operator (SIGTERM) and waits for its end.
    pub fn stop(&self) -> Result<()> {
        clients::stop_process(&self.paths, self.name)
    }

    /// Returns the process id, if the operator is running.
    pub fn id(&self) -> Option<u32> {
        records(&self.paths).alive(self.name)
    }

    /// Returns the log file, which is kept across starts.
    pub fn log(&self) -> PathBuf {
        self.paths.log(self.name)
    }

    /// Returns memory and processor time since the start of the running process.
    pub fn usage(&self) -> Result<Usage> {
        let id = self.id().context("the operator is not running")?;
        Usage::of(id)
    }
}

fn scale_to_zero(paths: &Paths) -> Result<()> {
    kubectl(paths, &["scale", DEPLOYMENT, "--namespace", NAMESPACE, "--replicas=0"])?;
    // Before the controllers have seen the change, they may still create pods.
    kubectl(paths, &["rollout", "status", DEPLOYMENT, "--namespace", NAMESPACE, "--timeout=60s"])?;
    let pods = ["pods", "--selector=app.kubernetes.io/name=nodestack-gpu-operator", "--namespace", NAMESPACE];
    if State::load(paths).is_some_and(|state| !state.nodes.is_real()) {
        // Nothing runs in it, and kwok may take a minute to delete it while a large fleet joins.
        kubectl(paths, &[&["delete"][..], &pods, &["--force", "--ignore-not-found"]].concat())?;
    }
    kubectl(paths, &[&["wait", "--for=delete"][..], &pods, &["--timeout=60s"]].concat())?;
    Ok(())
}

type Environment = Vec<(String, String)>;

/// Returns arguments and environment of the Deployment's container. References to the pod's own namespace are resolved.
fn invocation(deployment: &Deployment) -> Result<(Vec<String>, Environment)> {
    let pod = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref())
        .context("the Deployment has no pod template")?;
    let container = pod.containers.first().context("the Deployment has no container")?;
    let namespace = deployment.metadata.namespace.as_deref().unwrap_or_default();
    let environment: Environment = container
        .env
        .iter()
        .flatten()
        .map(|variable| (variable.name.clone(), variable.value.clone().unwrap_or_else(|| namespace.to_owned())))
        .collect();
    let expand = |arg: &String| {
        environment.iter().fold(arg.clone(), |arg, (name, value)| arg.replace(&format!("$({name})"), value))
    };
    Ok((container.args.iter().flatten().map(expand).collect(), environment))
}

fn listen_address(args: &mut [String]) -> Result<&mut String> {
    let at = args.iter().position(|arg| arg == "--listen").context("the Deployment has no argument --listen")?;
    args.get_mut(at + 1).context("--listen without an address")
}

fn check_ready(address: SocketAddr) -> Result<()> {
    let second = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&address, second)?;
    stream.set_read_timeout(Some(second))?;
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if !answer.starts_with("HTTP/1.1 200") {
        bail!("{}", answer.trim());
    }
    Ok(())
}
