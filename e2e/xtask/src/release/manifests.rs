//! The chart's archive and `install.yaml`.

use std::path::Path;

use anyhow::{Context, Result};
use cluster::{
    chart::{self, NAMESPACE, RELEASE},
    clients::helm,
};
use harness::{files::write, paths::Paths, process::output, progress::Step};

use super::files::{VERSION, file};

/// Packages the chart and renders it.
pub(super) fn make(paths: &Paths, folder: &Path, repository: &str) -> Result<()> {
    let step = Step::start("packaging the chart");
    let archive = chart::package(paths, folder, Some(repository))?;
    anyhow::ensure!(
        archive == file(folder, "gpu-operator", "tgz"),
        "Chart.yaml must have the version of Cargo.toml, {VERSION}: {}",
        archive.display()
    );
    write(&folder.join("install.yaml"), &render(paths, &archive)?)?;
    step.done();
    Ok(())
}

/// Returns the objects of a chart's archive, with the namespace that they need.
pub(super) fn render(paths: &Paths, archive: &Path) -> Result<String> {
    let namespace = include_str!("namespace.yaml");
    let mut helm = helm(paths);
    helm.args(["template", RELEASE, "--namespace", NAMESPACE, "--no-hooks"]).arg(archive);
    let objects = output(&mut helm).context("rendering the chart")?;
    Ok(format!("{namespace}{objects}"))
}
