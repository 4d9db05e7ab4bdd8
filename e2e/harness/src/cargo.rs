//! Building the workspace's programs, and where cargo puts them.

use std::{
    env,
    ffi::OsStr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use serde::Deserialize;

use super::{
    files::tail,
    paths::Paths,
    process::{output, run_logged},
    progress::Step,
};

const LOG: &str = "cargo-build";

/// The cargo profile of the workspace's programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Build {
    /// As built by `cargo build`.
    #[default]
    Debug,
    /// As users run it.
    Release,
}

impl Build {
    /// Returns the path of one of its programs or libraries.
    pub fn file(self, paths: &Paths, name: &str) -> PathBuf {
        let profile = match self {
            Self::Debug => "debug",
            Self::Release => "release",
        };
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| paths.root.join("target"), PathBuf::from);
        target.join(profile).join(name)
    }
}

/// Returns a cargo command for the checkout. Variables that the cargo that runs xtask has set for this package are removed:
/// build scripts that read them, and everything that depends on those, would be built again whenever a person and xtask call
/// cargo in turn.
pub fn command(checkout: &Path) -> Command {
    in_checkout(Command::new("cargo"), checkout)
}

/// Like [`command`], but it uses only the processor time that others leave.
pub fn background_command(checkout: &Path) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "19", "cargo"]);
    in_checkout(command, checkout)
}

/// Like [`command`], with another cargo.
pub fn in_checkout(mut command: Command, checkout: &Path) -> Command {
    command.current_dir(checkout);
    let is_of_package = |name: &str| ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|prefix| name.starts_with(prefix));
    for name in env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| is_of_package(name)) {
        command.env_remove(name);
    }
    command
}

/// What is built of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The programs that every pod needs.
    Pods,
    /// All programs and libraries.
    Programs,
    /// All programs, libraries and tests. Tests need features of some dependencies that programs do not: built one after the other, these
    /// would be compiled twice.
    Tests,
}

/// Builds the workspace's programs and libraries as the tests use them. It may run beside other steps, so it prints nothing:
/// [`progress`] has its last line.
pub fn build_workspace(paths: &Paths, scope: Scope) -> Result<()> {
    let args: &[&str] = match scope {
        Scope::Pods => &["--package=cluster"],
        Scope::Programs => &["--workspace"],
        Scope::Tests => &["--workspace", "--all-targets"],
    };
    build(paths, args, || {})
}

/// Returns the last line of the running build.
pub fn progress(paths: &Paths) -> String {
    tail(&paths.log(LOG), 400).lines().last().unwrap_or_default().trim().to_owned()
}

/// Replaces this process by a program of the workspace, which cargo builds first. It returns only if that fails.
pub fn exec(paths: &Paths, package: &str, args: &[String]) -> Result<()> {
    let mut cargo = command(&paths.root);
    cargo.args(["run", "--quiet", "--package", package, "--bin", package, "--"]).args(args);
    Err(cargo.exec()).context("starting cargo")
}

/// Builds packages as users run them.
pub fn build_release(paths: &Paths, packages: &[&str]) -> Result<()> {
    let packages: Vec<String> = packages.iter().map(|package| format!("--package={package}")).collect();
    let args: Vec<&str> = std::iter::once("--release").chain(packages.iter().map(String::as_str)).collect();
    let step = Step::start("building the measured programs");
    build(paths, &args, || step.tick(&progress(paths)))?;
    step.done();
    Ok(())
}

fn build(paths: &Paths, args: &[&str], tick: impl FnMut()) -> Result<()> {
    let mut cargo = command(&paths.root);
    run_logged(cargo.arg("build").args(args), &paths.log(LOG), tick)
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A package, as described by `cargo metadata`.
#[derive(Deserialize)]
pub struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Returns the packages that `cargo metadata` lists with these arguments.
pub(crate) fn packages(checkout: &Path, args: &[impl AsRef<OsStr>]) -> Result<Vec<Package>> {
    let mut metadata = command(checkout);
    metadata.args(["metadata", "--locked", "--quiet", "--format-version=1"]).args(args);
    let Metadata { packages } = serde_json::from_str(&output(&mut metadata)?)?;
    Ok(packages)
}

/// Returns the names of the integration tests of those packages of the workspace that `is_wanted` accepts.
pub fn test_targets(checkout: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let packages = packages(checkout, &["--no-deps"])?.into_iter().filter(|package| is_wanted(&package.name));
    let tests = packages.flat_map(|package| package.targets).filter(|target| target.kind == ["test"]);
    Ok(tests.map(|target| target.name).collect())
}
