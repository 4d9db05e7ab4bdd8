//! What commands have in common: the connection to a cluster with kubectl's flags, and how they end.

use std::{path::PathBuf, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use thiserror::Error;

use crate::output::Screen;

pub const COMMAND: &str = "kubectl gpu-fleet";

/// The namespace of the operator.
#[derive(clap::Args, Clone, Debug)]
pub struct OperatorNamespace {
    /// Namespace of the operator.
    // No environment variable: in a pod of another namespace, POD_NAMESPACE would be that one.
    #[arg(long = "operator-namespace", default_value = "gpu-operator", value_name = "NAME")]
    pub name: String,
}

/// What a command needs: the cluster, the time and the terminal.
#[derive(Clone)]
pub struct Context {
    pub client: Client,
    /// The namespace in which pods are looked for, unless they are named with another one.
    pub namespace: String,
    pub screen: Screen,
    /// The time at which the command was started.
    pub now: Timestamp,
}

/// How a command ended, if not by an error. Each is an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Good,
    /// What it reports is not as it should be.
    Bad,
    /// What `plan` reports is a change.
    Changes,
}

impl Outcome {
    pub fn code(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::Bad => 1,
            Self::Changes => 2,
        }
    }
}

/// The time within which the API server must answer, unless `--request-timeout` says otherwise.
const PATIENCE: Duration = Duration::from_secs(15);

/// kubectl's flags that select the cluster and the user.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Cluster and user, as for kubectl")]
pub struct Connection {
    /// Path of the kubeconfig file. Defaults to the files in KUBECONFIG, or else ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig file.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// Cluster of the kubeconfig file.
    #[arg(long, global = true, value_name = "NAME")]
    cluster: Option<String>,
    /// User of the kubeconfig file.
    #[arg(long, global = true, value_name = "NAME")]
    user: Option<String>,
    /// Address of the API server.
    #[arg(short, long, global = true, value_name = "URL")]
    server: Option<String>,
    /// Bearer token for the API server.
    #[arg(long, global = true, hide_env_values = true)]
    token: Option<String>,
    /// User to impersonate.
    #[arg(long = "as", global = true, value_name = "USER")]
    impersonate: Option<String>,
    /// Group to impersonate; may be repeated.
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    impersonate_groups: Vec<String>,
    /// Do not verify the API server's certificate.
    #[arg(long, global = true)]
    insecure_skip_tls_verify: bool,
    /// Time within which the API server must answer, such as 15s or 1m.
    #[arg(long, global = true, value_name = "TIME", value_parser = duration)]
    request_timeout: Option<Duration>,
    /// Namespace of pods. Defaults to the one of the context.
    #[arg(short, long, global = true)]
    namespace: Option<String>,
}

#[derive(Debug, Error)]
pub enum ConnectionError {
    #[error("cannot use the kubeconfig file: {0}; select another one with --kubeconfig, or another --context")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    #[error("no cluster is configured: {0}; write --kubeconfig FILE, or set KUBECONFIG")]
    Infer(#[from] kube::config::InferConfigError),
    #[error("--server {0} is not a URL; write https://HOST:PORT")]
    Server(String),
    /// The client cannot be created, for example because an exec credential plugin fails.
    #[error("cannot connect to the cluster: {0}")]
    Client(#[from] kube::Error),
}

/// Parses a duration with a unit, such as 90s or 30m, or a number of seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => 0,
    };
    let parsed = number.parse::<u64>().ok().filter(|_| seconds > 0);
    let parsed = parsed.and_then(|number| number.checked_mul(seconds)).map(Duration::from_secs);
    parsed.ok_or_else(|| "write a number with a unit, such as 90s, 30m or 2h".to_owned())
}

impl Connection {
    /// Returns a client, and the namespace in which pods are looked for.
    pub async fn client(&self) -> Result<(Client, String), ConnectionError> {
        let mut config = self.config().await?;
        if let Some(server) = &self.server {
            config.cluster_url = server.parse().map_err(|_| ConnectionError::Server(server.clone()))?;
        }
        if let Some(token) = &self.token {
            config.auth_info.token = Some(token.clone().into());
        }
        if self.impersonate.is_some() {
            config.auth_info.impersonate.clone_from(&self.impersonate);
        }
        if !self.impersonate_groups.is_empty() {
            config.auth_info.impersonate_groups = Some(self.impersonate_groups.clone());
        }
        config.accept_invalid_certs |= self.insecure_skip_tls_verify;
        // A timeout of zero is none, as for kubectl.
        let limit = Some(self.request_timeout.unwrap_or(PATIENCE)).filter(|limit| !limit.is_zero());
        config.read_timeout = limit;
        // Requests are not repeated: the user sees the error at once.
        config.default_retry = false;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        Ok((Client::try_from(config)?, namespace))
    }

    async fn config(&self) -> Result<Config, ConnectionError> {
        let options =
            KubeConfigOptions { context: self.context.clone(), cluster: self.cluster.clone(), user: self.user.clone() };
        let is_default = self.context.is_none() && self.cluster.is_none() && self.user.is_none();
        Ok(match &self.kubeconfig {
            Some(path) => Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await?,
            None if is_default => Config::infer().await?,
            None => Config::from_kubeconfig(&options).await?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_known_unit() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2h"), Ok(Duration::from_hours(2)));
        for wrong in ["", "m", "5d", "-1s", "1.5h", "99999999999999999999h", "18446744073709551615h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
