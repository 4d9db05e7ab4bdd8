//! The files of a release other than the images, their names, and what to release.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use cluster::{
    chart::{self, NAMESPACE, RELEASE},
    clients::helm,
};
pub(super) use harness::licences::PROGRAMS;
use harness::{
    cargo,
    files::{copy, write},
    paths::Paths,
    process::{output, run_logged},
    progress::Step,
};

/// The version of all packages, images and the chart.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The architectures of the images.
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];
const SBOM_TOOL: &str = "cargo-cyclonedx@0.5.9";
pub(super) const LICENCES: &str = "licenses.txt";
pub(super) const CHECKSUMS: &str = "SHA256SUMS";

/// The values of `e_machine` in ELF programs, by architecture.
pub(super) const MACHINES: [(&str, u8); 2] = [("amd64", 62), ("arm64", 183)];

/// What to release.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Registry and path before `/gpu-operator` and `/nvml-probe`, from which nodes will pull the images.
    #[arg(long, default_value = "registry.example.com/gpu")]
    pub repository: String,
    /// The image in which the programs are built. By default it is made of Debian packages and the toolchain from rustup.
    #[arg(long, requires = "base")]
    pub builder: Option<String>,
    /// The base of the images. By default it is made of Debian packages.
    #[arg(long, requires = "builder")]
    pub base: Option<String>,
    /// An architecture of the images; may be repeated.
    #[arg(long = "architecture", value_parser = ARCHITECTURES, default_values = ARCHITECTURES)]
    pub architectures: Vec<String>,
    /// An archive of `kubectl gpu-fleet` that was built elsewhere, such as on a Mac; may be repeated.
    #[arg(long = "archive")]
    pub archives: Vec<PathBuf>,
    /// The URL below which the archives will be found.
    #[arg(long, default_value = "https://downloads.example.com/gpu-operator")]
    pub downloads: String,
    /// Only verify the files of an earlier run.
    #[arg(long)]
    pub check: bool,
}

/// Returns the path of a file of this version: `NAME-VERSION.ENDING`.
pub(super) fn file(folder: &Path, name: &str, ending: &str) -> PathBuf {
    folder.join(format!("{name}-{VERSION}.{ending}"))
}

/// Returns the names and sizes, in bytes, of all files in a folder, sorted by name.
pub(super) fn list(folder: &Path) -> Result<Vec<(String, u64)>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files = entries
        .map(|entry| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), entry.metadata()?.len()))
        })
        .collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

/// Packages the chart and renders it.
pub(super) fn chart(paths: &Paths, folder: &Path, repository: &str) -> Result<()> {
    let step = Step::start("packaging the chart");
    let archive = chart::package(paths, folder, Some(repository))?;
    ensure!(
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

/// Lists each program's dependencies. cargo-cyclonedx writes beside the manifests of all packages, so it runs in a copy, whose path is replaced
/// in what it writes.
pub(super) fn dependencies(paths: &Paths, folder: &Path) -> Result<()> {
    let step = Step::start("listing the dependencies");
    let (log, tool) = (paths.log("sbom"), paths.base.join("cyclonedx"));
    let mut install = cargo::command(&paths.root);
    install.args(["install", "--locked", "--quiet", SBOM_TOOL, "--root"]).arg(&tool);
    run_logged(&mut install, &log, || step.tick("building cargo-cyclonedx"))?;
    let copied = tempfile::tempdir_in(&paths.base)?;
    for part in ["Cargo.toml", "Cargo.lock", "crates", "e2e"] {
        copy(&paths.root.join(part), &copied.path().join(part))?;
    }
    let mut list = Command::new(tool.join("bin/cargo-cyclonedx"));
    list.current_dir(copied.path()).args(["cyclonedx", "--format=json", "--target=all", "--override-filename=list"]);
    run_logged(&mut list, &log, || step.tick("reading the dependencies"))?;
    let place = copied.path().display().to_string();
    for program in PROGRAMS {
        let package = copied.path().join("crates").join(program.strip_prefix("gpu-").unwrap_or(program));
        let text = fs::read_to_string(package.join("list.json")).with_context(|| format!("the list of {program}"))?;
        write(&file(folder, program, "cdx.json"), &text.replace(&place, "/source"))?;
    }
    step.done();
    Ok(())
}

/// Writes the checksums of all files.
pub(super) fn checksums(folder: &Path) -> Result<()> {
    let names = list(folder)?.into_iter().map(|(name, _)| name);
    let sums = output(Command::new("sha256sum").current_dir(folder).args(names))?;
    write(&folder.join(CHECKSUMS), &sums)
}
