//! kubectl and helm for the running cluster.

use std::{env, path::PathBuf, process::Command};

use anyhow::Result;
use harness::{
    paths::Paths,
    process::{collect_seldom, output},
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
