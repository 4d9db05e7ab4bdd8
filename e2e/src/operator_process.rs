//! The operator as a process of this machine, with the arguments of the chart's Deployment and the rights of its own
//! service account: it can be killed at any instant, and measured.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;

use crate::{
    chart::{RELEASE, kubectl},
    cluster::Cluster,
    images,
    paths::Paths,
    process::{poll, tail},
    state::records,
    usage::Usage,
};

const NAME: &str = "operator-process";
const DEPLOYMENT: &str = "deployment/gpu-operator";
/// How long it may take to end when asked to.
const GRACE: Duration = Duration::from_secs(10);

/// How the programs of this checkout are built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Build {
    /// As `cargo build` makes it.
    #[default]
    Debug,
    /// As users run it.
    Release,
}

impl Build {
    /// A program or library of it.
    pub(crate) fn file(self, paths: &Paths, name: &str) -> PathBuf {
        let profile = match self {
            Self::Debug => "debug",
            Self::Release => "release",
        };
        images::target(paths).join(profile).join(name)
    }
}

/// The operator, running outside the cluster in place of its Deployment.
#[derive(Debug)]
pub struct OperatorProcess {
    paths: Paths,
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    kubeconfig: PathBuf,
    listen: SocketAddr,
}

impl OperatorProcess {
    /// Takes the Deployment's pods away and starts the operator in their place. One that an earlier process of ours has
    /// left running ends.
    ///
    /// # Errors
    /// If the chart is not installed, the program not built, or the operator ends or is not ready within a minute.
    pub fn start(cluster: &Cluster, build: Build) -> Result<Self> {
        let paths = cluster.paths().clone();
        let program = build.file(&paths, "gpu-operator");
        let text = kubectl(&paths, &["get", DEPLOYMENT, "--namespace", RELEASE, "-o", "json"])?;
        let deployment: Deployment = serde_json::from_str(&text).context("reading the operator's Deployment")?;
        let (mut args, mut env) = invocation(&deployment)?;
        // As a process of the machine it has the machine's network, of which it gets a port on loopback.
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, cluster.operator_port()));
        *listen_address(&mut args)? = listen.to_string();
        stop(&paths)?;
        scale(&paths, 0)?;
        let kubeconfig = cluster.service_account("gpu-operator", None)?;
        // In a pod this says where the API server is; here the kubeconfig does.
        env.retain(|(name, _)| !name.starts_with("KUBERNETES_SERVICE_"));
        let operator = Self { paths, program, args, env, kubeconfig, listen };
        operator.start_again()?;
        Ok(operator)
    }

    /// Starts it anew after it has ended, and waits until it is ready.
    ///
    /// # Errors
    /// If it runs already, ends or is not ready within a minute.
    pub fn start_again(&self) -> Result<()> {
        self.launch()?;
        self.wait_ready()
    }

    /// Starts it anew after it has ended, and does not wait.
    ///
    /// # Errors
    /// If it runs already or cannot be started.
    pub fn launch(&self) -> Result<()> {
        let records = records(&self.paths);
        if records.alive(NAME).is_some() {
            bail!("the operator runs already");
        }
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env.iter().cloned()).env("KUBECONFIG", &self.kubeconfig);
        records
            .spawn(NAME, &mut command, &self.log())
            .with_context(|| format!("{} (built by cargo?)", self.program.display()))
    }

    fn wait_ready(&self) -> Result<()> {
        poll("the operator's readiness", Duration::from_mins(1), || {
            if records(&self.paths).alive(NAME).is_none() {
                bail!("the operator ended; the end of its log:\n{}", tail(&self.log(), 3_000));
            }
            Ok(ready(self.listen).map_err(|error| format!("{error:#}")))
        })
    }

    /// Ends it at once, whatever it is in the middle of (SIGKILL).
    ///
    /// # Errors
    /// If it does not end.
    pub fn kill(&self) -> Result<()> {
        records(&self.paths).stop(NAME, Duration::ZERO)
    }

    /// Asks it to end (SIGTERM) and waits for that.
    ///
    /// # Errors
    /// If it does not end.
    pub fn stop(&self) -> Result<()> {
        stop(&self.paths)
    }

    /// Ends it and gives the Deployment its pod back.
    ///
    /// # Errors
    /// If it does not end, or the API server refuses.
    pub fn give_back(self) -> Result<()> {
        self.stop()?;
        scale(&self.paths, 1)
    }

    /// Its id, while it runs.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        records(&self.paths).alive(NAME)
    }

    /// The file that it logs to, over all its starts.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.paths.log(NAME)
    }

    /// What the running process has cost since its start.
    ///
    /// # Errors
    /// If it does not run.
    pub fn usage(&self) -> Result<Usage> {
        let id = self.id().context("the operator does not run")?;
        Usage::of(id)
    }
}

/// Ends the operator's process, if there is one.
pub(crate) fn stop(paths: &Paths) -> Result<()> {
    records(paths).stop(NAME, GRACE)
}

fn scale(paths: &Paths, replicas: u32) -> Result<()> {
    kubectl(paths, &["scale", DEPLOYMENT, "--namespace", RELEASE, &format!("--replicas={replicas}")])?;
    if replicas == 0 {
        // Until the controllers have seen it, there may be no pod yet of those that they are about to make.
        kubectl(paths, &["rollout", "status", DEPLOYMENT, "--namespace", RELEASE, "--timeout=60s"])?;
        let pods = "--selector=app.kubernetes.io/name=gpu-operator";
        kubectl(paths, &["wait", "--for=delete", "pods", pods, "--namespace", RELEASE, "--timeout=60s"])?;
    }
    Ok(())
}

type Environment = Vec<(String, String)>;

/// Arguments and environment of the Deployment's container. What a pod would be told of itself is said here.
fn invocation(deployment: &Deployment) -> Result<(Vec<String>, Environment)> {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).context("no pod")?;
    let container = pod.containers.first().context("no container")?;
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
    let at = args.iter().position(|arg| arg == "--listen").context("the Deployment gives no --listen")?;
    args.get_mut(at + 1).context("--listen without an address")
}

fn ready(address: SocketAddr) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_deployments_arguments_are_taken_as_a_pod_would_get_them() {
        let deployment = serde_json::from_value(json!({
            "metadata": {"namespace": "ns"},
            "spec": {"selector": {}, "template": {"spec": {"containers": [{
                "name": "gpu-operator",
                "args": ["run", "--namespace", "$(POD_NAMESPACE)", "--listen", "127.0.0.1:99"],
                "env": [
                    {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                    {"name": "RUST_LOG", "value": "info"},
                ],
            }]}}},
        }));
        let (mut args, environment) = invocation(&deployment.unwrap()).unwrap();
        assert_eq!(args, ["run", "--namespace", "ns", "--listen", "127.0.0.1:99"]);
        assert_eq!(environment[1], ("RUST_LOG".to_owned(), "info".to_owned()));
        assert_eq!(listen_address(&mut args).unwrap(), "127.0.0.1:99");
    }
}
