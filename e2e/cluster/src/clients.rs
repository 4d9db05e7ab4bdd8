//! kubectl and helm for the running cluster.

use std::{env, process::Command};

use anyhow::Result;
use harness::{paths::Paths, process::output};

/// Runs kubectl and returns its standard output.
pub fn kubectl(paths: &Paths, args: &[&str]) -> Result<String> {
    output(Command::new(paths.tool("kubectl")).arg("--kubeconfig").arg(paths.kubeconfig()).args(args))
}

/// Returns the command of a shell script of this checkout, which finds kubectl.
pub fn script(paths: &Paths, script: &str) -> Result<Command> {
    let others = env::var_os("PATH").unwrap_or_default();
    let folders = env::join_paths([paths.bin()].into_iter().chain(env::split_paths(&others)))?;
    let mut command = Command::new("/bin/sh");
    command.arg(paths.root.join(script)).env("KUBECONFIG", paths.kubeconfig()).env("PATH", folders);
    Ok(command)
}

/// Returns a command of helm, whose own files are in `target/e2e`.
pub fn helm(paths: &Paths) -> Command {
    let mut command = Command::new(paths.tool("helm"));
    let own = |name: &str| paths.base.join("helm").join(name);
    command
        .env("KUBECONFIG", paths.kubeconfig())
        .env("HELM_CACHE_HOME", own("cache"))
        .env("HELM_CONFIG_HOME", own("config"))
        .env("HELM_DATA_HOME", own("data"));
    command
}
