//! Clients of the running cluster: kubectl and helm, operator and probe as processes of this machine, and the names of users in the audit log.

use std::{env, path::PathBuf, process::Command, time::Duration};

use anyhow::Result;
use harness::{
    paths::Paths,
    process::{collect_seldom, output},
    records::records,
    tools::Kubernetes,
};

use super::state::State;

/// Returns the folder of the cluster's kubectl, which is of the same release as its API server.
pub fn folder(paths: &Paths) -> PathBuf {
    let kubernetes = State::load(paths).map_or(Kubernetes::default(), |state| state.nodes.kubernetes());
    kubernetes.folder(paths)
}

/// Runs kubectl and returns its standard output.
pub fn kubectl(paths: &Paths, args: &[&str]) -> Result<String> {
    output(Command::new(folder(paths).join("kubectl")).arg("--kubeconfig").arg(paths.kubeconfig()).args(args))
}

/// Returns the command of a shell script of this checkout, which finds kubectl.
pub fn script(paths: &Paths, script: &str) -> Result<Command> {
    let others = env::var_os("PATH").unwrap_or_default();
    let folders = env::join_paths([folder(paths)].into_iter().chain(env::split_paths(&others)))?;
    let mut command = Command::new("/bin/sh");
    command.arg(paths.root.join(script)).env("KUBECONFIG", paths.kubeconfig()).env("PATH", folders);
    Ok(command)
}

/// Returns a command of helm, whose own files are in `target/e2e`.
pub fn helm(paths: &Paths) -> Command {
    let mut command = Command::new(paths.tool("helm"));
    let own = |name: &str| paths.base.join("helm").join(name);
    collect_seldom(&mut command)
        .env("KUBECONFIG", paths.kubeconfig())
        .env("HELM_CACHE_HOME", own("cache"))
        .env("HELM_CONFIG_HOME", own("config"))
        .env("HELM_DATA_HOME", own("data"));
    command
}

/// The record and log of an operator that runs as a process of this machine.
pub const OPERATOR_PROCESS: &str = "operator-process";
/// Those of a second operator, which follows the first one.
pub const STANDBY_PROCESS: &str = "standby-process";
/// Those of the probe.
pub const PROBE_PROCESS: &str = "probe-process";

/// The time that these have to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// Stops one of them, if it is running.
pub fn stop_process(paths: &Paths, name: &str) -> Result<()> {
    records(paths).stop(name, GRACE)
}

/// The operator, and the chart's hook for `helm uninstall`.
pub const OPERATOR: &str = "system:serviceaccount:gpu-operator:nodestack-gpu-operator";
pub const PROBE: &str = "system:serviceaccount:gpu-operator:nodestack-nvml-probe";
pub const DETECTOR: &str = "system:serviceaccount:gpu-operator:nodestack-gpu-detector";
/// The default service account, for commands whose reads are counted.
pub const READER: &str = "system:serviceaccount:default:default";
/// The user of the cluster's kubeconfig, which a fleet's agent uses too. It has all rights.
pub const ADMIN: &str = "admin";
