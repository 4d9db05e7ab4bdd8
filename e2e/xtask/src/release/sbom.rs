//! The software bills of materials, written by cargo-cyclonedx.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use harness::{
    cargo,
    files::{copy, write},
    paths::Paths,
    process::run_logged,
    progress::Step,
};
use serde_json::Value;

use super::files::{PROGRAMS, VERSION, file};

const TOOL: &str = "cargo-cyclonedx@0.5.9";

/// Writes the list of each program's dependencies.
pub(super) fn make(paths: &Paths, folder: &Path) -> Result<()> {
    let step = Step::start("listing the dependencies");
    let log = paths.log("sbom");
    let tool = paths.base.join("cyclonedx");
    let mut install = cargo::command(&paths.root);
    install.args(["install", "--locked", "--quiet", TOOL, "--root"]).arg(&tool);
    run_logged(&mut install, &log, || step.tick("building cargo-cyclonedx"))?;
    // It writes beside the manifests of all packages, so it runs in a copy, whose path is replaced in what it writes.
    let copied = tempfile::tempdir_in(&paths.base)?;
    for part in ["Cargo.toml", "Cargo.lock", "crates", "e2e"] {
        copy(&paths.root.join(part), &copied.path().join(part))?;
    }
    let mut list = Command::new(tool.join("bin/cargo-cyclonedx"));
    list.current_dir(copied.path()).args(["cyclonedx", "--format=json", "--target=all", "--override-filename=list"]);
    run_logged(&mut list, &log, || step.tick("reading the dependencies"))?;
    let place = copied.path().display().to_string();
    for program in PROGRAMS {
        let written = copied.path().join("crates").join(folder_of(program)).join("list.json");
        let text = fs::read_to_string(&written).with_context(|| format!("reading {}", written.display()))?;
        write(&file(folder, program, "cdx.json"), &text.replace(&place, "/source"))?;
    }
    step.done();
    Ok(())
}

/// Returns the folder of a program's package.
fn folder_of(program: &str) -> &str {
    program.strip_prefix("gpu-").unwrap_or(program)
}

/// Verifies that a list describes the program and names its dependencies.
pub(super) fn check(folder: &Path, program: &str) -> Result<()> {
    let path = file(folder, program, "cdx.json");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let sbom: Value = serde_json::from_str(&text).with_context(|| format!("parsing {}", path.display()))?;
    let subject = &sbom["metadata"]["component"];
    ensure!(subject["name"] == program && subject["version"] == VERSION, "{} describes {subject}", path.display());
    let components = sbom["components"].as_array().map(Vec::as_slice).unwrap_or_default();
    ensure!(
        components.iter().any(|component| component["name"] == "tokio"),
        "{} lists {} components, and tokio is not among them",
        path.display(),
        components.len()
    );
    Ok(())
}
