//! kubectl and helm for the running cluster.

use std::process::Command;

use anyhow::Result;

use crate::harness::{paths::Paths, process::output};

/// Runs kubectl and returns its standard output.
pub(crate) fn kubectl(paths: &Paths, args: &[&str]) -> Result<String> {
    output(Command::new(paths.tool("kubectl")).arg("--kubeconfig").arg(paths.kubeconfig()).args(args))
}

/// Returns a command of helm, whose own files are in `target/e2e`.
pub(crate) fn helm(paths: &Paths) -> Command {
    let mut command = Command::new(paths.tool("helm"));
    let own = |name: &str| paths.cluster().join("helm").join(name);
    command
        .env("KUBECONFIG", paths.kubeconfig())
        .env("HELM_CACHE_HOME", own("cache"))
        .env("HELM_CONFIG_HOME", own("config"))
        .env("HELM_DATA_HOME", own("data"));
    command
}
