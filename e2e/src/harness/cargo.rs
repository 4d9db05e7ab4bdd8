//! Building the workspace's programs, and where cargo puts them.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::{files::tail, paths::Paths, process::run_logged, progress::Step};

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
    pub(crate) fn file(self, paths: &Paths, name: &str) -> PathBuf {
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
pub(crate) fn command(checkout: &Path) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(checkout);
    let is_of_package = |name: &str| ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|prefix| name.starts_with(prefix));
    for name in env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| is_of_package(name)) {
        command.env_remove(name);
    }
    command
}

/// Builds the workspace's programs and libraries as the tests use them; without `all`, only those that every pod needs.
pub(crate) fn build_workspace(paths: &Paths, all: bool) -> Result<()> {
    build(paths, "building the workspace", if all { &["--workspace"] } else { &["--package=e2e"] })
}

/// Builds packages as users run them.
pub(crate) fn build_release(paths: &Paths, packages: &[&str]) -> Result<()> {
    let packages: Vec<String> = packages.iter().map(|package| format!("--package={package}")).collect();
    let args: Vec<&str> = std::iter::once("--release").chain(packages.iter().map(String::as_str)).collect();
    build(paths, "building the measured programs", &args)
}

fn build(paths: &Paths, step: &str, args: &[&str]) -> Result<()> {
    let step = Step::start(step);
    let log = paths.log("cargo-build");
    let mut cargo = command(&paths.root);
    cargo.arg("build").args(args);
    run_logged(&mut cargo, &log, || {
        let text = tail(&log, 400);
        step.tick(text.lines().last().unwrap_or_default().trim());
    })?;
    step.done();
    Ok(())
}
