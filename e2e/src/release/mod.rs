//! `release`: what a version of the product consists of, all in `target/release-files`.
//!
//! | File | Content |
//! |---|---|
//! | `gpu-operator-VERSION.oci.tar`, `nvml-probe-VERSION.oci.tar` | the images, for amd64 and arm64 |
//! | `gpu-operator-VERSION.tgz` | the chart, which uses these images |
//! | `install.yaml` | the chart's objects with its defaults, for clusters without Helm |
//! | `gpu-operator-VERSION.cdx.json`, `nvml-probe-VERSION.cdx.json` | the dependencies of each program (CycloneDX) |
//! | `licenses.txt` | the licences of these dependencies |
//! | `SHA256SUMS` | the checksums of all other files |

mod check;
mod checksums;
mod images;
mod manifests;
mod sbom;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    generated::notice,
    harness::{
        files::{ignore_missing, write},
        packages,
        paths::Paths,
        process::output,
        progress::{Step, heading},
        tools,
    },
};

/// The version of all packages, images and the chart.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The programs, which are also the names of their packages and images.
const PROGRAMS: [&str; 2] = ["gpu-operator", "nvml-probe"];
/// The architectures of the images.
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

/// What to release.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Registry and path before `/gpu-operator` and `/nvml-probe`, from which nodes will pull the images.
    #[arg(long, default_value = "registry.example.com/gpu")]
    repository: String,
    /// The image in which the programs are built. By default it is made of Debian packages and the toolchain from rustup.
    #[arg(long, requires = "base")]
    builder: Option<String>,
    /// The base of the images. By default it is made of Debian packages.
    #[arg(long, requires = "builder")]
    base: Option<String>,
    /// An architecture of the images; may be repeated.
    #[arg(long = "architecture", value_parser = ARCHITECTURES, default_values = ARCHITECTURES)]
    architectures: Vec<String>,
    /// Only verify the files of an earlier run.
    #[arg(long)]
    check: bool,
}

/// Makes and verifies the files of a release, or only verifies them.
pub(crate) fn run(paths: &Paths, options: &Options) -> Result<()> {
    let folder = paths.root.join("target/release-files");
    packages::install(paths, true)?;
    tools::build_helm(paths)?;
    if !options.check {
        fs::remove_dir_all(&folder).or_else(ignore_missing)?;
        fs::create_dir_all(&folder)?;
        heading("making the release");
        manifests::make(paths, &folder, &options.repository)?;
        sbom::make(paths, &folder)?;
        write(&folder.join("licenses.txt"), &notice::licence_texts(&paths.root)?)?;
        images::make(paths, &folder, options, &revision(&paths.root))?;
        checksums::write(&folder)?;
    }
    let step = Step::start("verifying the release");
    check::run(paths, &folder, &options.architectures).context("the release is not valid")?;
    step.done();
    outln!("\n{}", folder.display());
    for (file, size) in files(&folder)? {
        outln!("  {:>9} KiB  {file}", size / 1024);
    }
    Ok(())
}

/// Returns the path of a file of this version: `NAME-VERSION.ENDING`.
fn file(folder: &Path, name: &str, ending: &str) -> PathBuf {
    folder.join(format!("{name}-{VERSION}.{ending}"))
}

/// Returns the names and sizes, in bytes, of all files in a folder, sorted by name.
fn files(folder: &Path) -> Result<Vec<(String, u64)>> {
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

/// Returns the commit of the sources, with `-modified` if files differ from it; `unknown` without git.
fn revision(checkout: &Path) -> String {
    let mut git = Command::new("git");
    git.current_dir(checkout).args(["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=-modified"]);
    output(&mut git).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
