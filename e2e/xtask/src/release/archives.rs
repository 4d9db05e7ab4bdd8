//! The archives of `kubectl gpu-fleet`, one for each platform, and its manifest for krew. Archives for macOS need a Mac: the workflow makes
//! them, and hands them over with `--archive`.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use harness::{
    files::{copy, write},
    paths::Paths,
    process::{output, run_logged},
    progress::Step,
};

use super::{
    files::{MACHINES, Options, VERSION},
    toolchain::Toolchain,
};

const PROGRAM: &str = "kubectl-gpu_fleet";
const MANIFEST: &str = "gpu-fleet.yaml";
const ENDING: &str = ".tar.gz";
/// Their files in the checkout. The texts of all licences are in a file of the release.
const LICENCES: [&str; 2] = ["LICENSE", "NOTICE"];

/// A platform for which archives are built here. Programs for Linux are linked statically, so that they run with every C library.
struct Platform {
    os: &'static str,
    architecture: &'static str,
    target: &'static str,
    compiler: &'static str,
}

const PLATFORMS: [Platform; 3] = [
    Platform { os: "linux", architecture: "amd64", target: "x86_64-unknown-linux-musl", compiler: "gcc" },
    Platform {
        os: "linux",
        architecture: "arm64",
        target: "aarch64-unknown-linux-musl",
        compiler: "aarch64-linux-gnu-gcc",
    },
    Platform {
        os: "windows",
        architecture: "amd64",
        target: "x86_64-pc-windows-gnu",
        compiler: "x86_64-w64-mingw32-gcc",
    },
];

fn program(os: &str) -> String {
    let ending = if os == "windows" { ".exe" } else { "" };
    format!("{PROGRAM}{ending}")
}

/// Builds the archives of these architectures, and writes the manifest for them and those of other platforms.
pub(super) fn make(paths: &Paths, folder: &Path, options: &Options, toolchain: &Toolchain) -> Result<()> {
    for platform in
        PLATFORMS.iter().filter(|platform| options.architectures.iter().any(|is| is == platform.architecture))
    {
        let Platform { os, architecture, .. } = platform;
        let step = Step::start(format!("building kubectl gpu-fleet for {os} {architecture}"));
        let built = build(paths, toolchain, platform, || step.tick("compiling"))?;
        let content = tempfile::tempdir_in(&paths.base)?;
        copy(&built, &content.path().join(program(os)))?;
        for licence in LICENCES {
            copy(&paths.root.join(licence), &content.path().join(licence))?;
        }
        let mut tar = Command::new("tar");
        tar.args(["--create", "--gzip", "--owner=0", "--group=0", "--numeric-owner", "--sort=name", "--file"]);
        tar.arg(folder.join(format!("{PROGRAM}-{VERSION}-{os}-{architecture}{ENDING}")));
        output(tar.arg("--directory").arg(content.path()).arg(program(os)).args(LICENCES))?;
        step.done();
    }
    for archive in &options.archives {
        copy(archive, &folder.join(archive.file_name().context("an archive has no name")?))?;
    }
    write(&folder.join(MANIFEST), &manifest(folder, &options.downloads)?)
}

fn build(paths: &Paths, toolchain: &Toolchain, platform: &Platform, tick: impl FnMut()) -> Result<PathBuf> {
    let Platform { os, target, compiler, .. } = platform;
    let to = paths.base.join("archives");
    let mut cargo = toolchain.cargo(paths);
    cargo.env(format!("CC_{}", target.replace('-', "_")), compiler);
    cargo.env(format!("CARGO_TARGET_{}_LINKER", target.replace('-', "_").to_uppercase()), compiler);
    cargo.args(["build", "--locked", "--release", "--package=gpu-operator-cli", "--target", target, "--target-dir"]);
    run_logged(cargo.arg(&to), &paths.log("release-archives"), tick)?;
    Ok(to.join(target).join("release").join(program(os)))
}

/// An archive of a folder of release files.
struct Archive {
    path: PathBuf,
    name: String,
    os: String,
    architecture: String,
}

/// Returns all archives, sorted by name.
fn archives(folder: &Path) -> Result<Vec<Archive>> {
    let mut archives = Vec::new();
    for (name, _) in super::files::list(folder)? {
        let platform = name.strip_prefix(&format!("{PROGRAM}-{VERSION}-")).and_then(|rest| rest.strip_suffix(ENDING));
        if let Some((os, architecture)) = platform.and_then(|platform| platform.split_once('-')) {
            let (os, architecture) = (os.to_owned(), architecture.to_owned());
            archives.push(Archive { path: folder.join(&name), name, os, architecture });
        }
    }
    Ok(archives)
}

/// Returns the manifest by which `kubectl krew install --manifest` installs the plugin.
fn manifest(folder: &Path, downloads: &str) -> Result<String> {
    let mut text = format!(
        "apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: gpu-fleet
spec:
  version: v{VERSION}
  shortDescription: Inspect and explain fleets of NVIDIA GPU nodes
  description: |
    For clusters with gpu-operator: which GPU nodes are ready, why others are not,
    why a pod has no GPU, and what a policy would change.
  platforms:
"
    );
    for archive in archives(folder)? {
        let Archive { name, os, architecture, .. } = &archive;
        let (sum, program) = (checksum(&archive)?, program(os));
        write!(
            text,
            "  - selector:
      matchLabels:
        os: {os}
        arch: {architecture}
    uri: {downloads}/{name}
    sha256: {sum}
    bin: {program}
    files:
    - from: {program}
      to: .
    - from: LICENSE
      to: .
"
        )?;
    }
    Ok(text)
}

fn checksum(archive: &Archive) -> Result<String> {
    let sum = output(Command::new("sha256sum").arg(&archive.path))?;
    Ok(sum.split_whitespace().next().context("sha256sum printed nothing")?.to_owned())
}

/// Verifies the manifest, and what is in each archive; runs the program of this machine in a folder with nothing else. Returns the number of
/// these files.
pub(super) fn check(folder: &Path, architectures: &[String]) -> Result<usize> {
    let (archives, manifest) = (archives(folder)?, fs::read_to_string(folder.join(MANIFEST))?);
    for Platform { os, architecture, .. } in &PLATFORMS {
        let is_it = |archive: &Archive| archive.os == *os && archive.architecture == *architecture;
        let is_wanted = architectures.iter().any(|wanted| wanted == architecture);
        ensure!(!is_wanted || archives.iter().any(is_it), "there is no archive for {os} {architecture}");
    }
    for archive in &archives {
        let of = || format!("{}", archive.path.display());
        let content = tempfile::tempdir()?;
        let mut tar = Command::new("tar");
        output(tar.arg("--extract").arg("--file").arg(&archive.path).arg("--directory").arg(content.path()))?;
        let program = content.path().join(program(&archive.os));
        check_program(archive, &fs::read(&program).with_context(of)?).with_context(of)?;
        let has = |licence: &&str| content.path().join(licence).exists();
        ensure!(LICENCES.iter().all(has), "{} has no licences", of());
        ensure!(manifest.contains(&checksum(archive)?), "{MANIFEST} has another checksum of {}", of());
        if (&*archive.os, &*archive.architecture) == ("linux", "amd64") {
            let version = output(Command::new(&program).env_clear().current_dir(content.path()).arg("--version"))?;
            ensure!(version.contains(VERSION), "{} prints {version}", of());
        }
    }
    Ok(archives.len() + 1)
}

/// Verifies for which system and processor a program is.
fn check_program(archive: &Archive, program: &[u8]) -> Result<()> {
    let is_right = match &*archive.os {
        "linux" => {
            let machine = MACHINES.iter().find(|(name, _)| *name == archive.architecture).map(|(_, machine)| *machine);
            program.starts_with(b"\x7fELF") && program.get(18).copied() == machine
        }
        "windows" => program.starts_with(b"MZ"),
        // A 64-bit Mach-O file.
        _ => program.starts_with(&[0xcf, 0xfa, 0xed, 0xfe]),
    };
    ensure!(is_right, "the program is not for {} {}", archive.os, archive.architecture);
    Ok(())
}
