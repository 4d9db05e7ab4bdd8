//! `release`: what a version of the product consists of, all in `target/release-files`.
//!
//! | File | Content |
//! |---|---|
//! | `gpu-operator-VERSION.oci.tar`, `nvml-probe-VERSION.oci.tar` | the images, for amd64 and arm64 |
//! | `gpu-operator-VERSION.tgz` | the chart, which uses these images |
//! | `install.yaml` | the chart's objects with its defaults, for clusters without Helm |
//! | `gpu-operator-VERSION.cdx.json`, `nvml-probe-VERSION.cdx.json` | the dependencies of each program (CycloneDX) |
//! | `licenses.txt` | the licences of all dependencies |
//! | `kubectl-gpu_fleet-VERSION-OS-ARCHITECTURE.tar.gz` | `kubectl gpu-fleet`, for each platform |
//! | `gpu-fleet.yaml` | its manifest for krew |
//! | `SHA256SUMS` | the checksums of all other files |

mod archives;
mod check;
mod files;
mod images;
mod toolchain;

use std::{fs, process::Command};

use anyhow::{Context, Result};
use harness::{
    files::{ignore_missing, write},
    licences, outln, packages,
    paths::Paths,
    process::output,
    progress::{Step, heading},
    tools,
};

pub(crate) use self::files::Options;
use self::toolchain::Toolchain;

/// Makes and verifies the files of a release, or only verifies them.
pub(crate) fn run(paths: &Paths, options: &Options) -> Result<()> {
    let folder = paths.root.join("target/release-files");
    packages::install(paths, packages::Purpose::Release)?;
    tools::build_helm(paths)?;
    if !options.check {
        fs::remove_dir_all(&folder).or_else(ignore_missing)?;
        fs::create_dir_all(&folder)?;
        heading("making the release");
        files::chart(paths, &folder, &options.repository)?;
        files::dependencies(paths, &folder)?;
        write(&folder.join(files::LICENCES), &licences::licence_texts(&paths.root)?)?;
        let toolchain = Toolchain::installed(paths)?;
        images::make(paths, &folder, options, &toolchain, &revision(&paths.root))?;
        archives::make(paths, &folder, options, &toolchain)?;
        files::checksums(&folder)?;
    }
    let step = Step::start("verifying the release");
    check::run(paths, &folder, &options.architectures).context("the release is not valid")?;
    step.done();
    outln!("\n{}", folder.display());
    for (file, size) in files::list(&folder)? {
        outln!("  {:>9} KiB  {file}", size / 1024);
    }
    Ok(())
}

/// Returns the commit of the sources, with `-modified` if files differ from it; `unknown` without git.
fn revision(checkout: &std::path::Path) -> String {
    let mut git = Command::new("git");
    git.current_dir(checkout).args(["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=-modified"]);
    output(&mut git).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
