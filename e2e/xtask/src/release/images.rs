//! The images, built from the Dockerfile for all architectures.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use harness::{
    buildah::{ARCHITECTURE, Debian, buildah},
    cargo,
    paths::Paths,
    process::run_logged,
    progress::Step,
};

use super::{
    files::{Options, PROGRAMS, VERSION, file},
    toolchain::Toolchain,
};

/// The packages of the image in which the programs are built, besides the toolchain, which is mounted.
const BUILDER: Debian = Debian {
    name: "gpu-operator-builder",
    packages: &[
        "ca-certificates",
        "coreutils",
        "dash",
        "gcc",
        "gcc-aarch64-linux-gnu",
        "gcc-x86-64-linux-gnu",
        "libc6-dev",
        "libc6-dev-amd64-cross",
        "libc6-dev-arm64-cross",
    ],
    architecture: ARCHITECTURE,
    instructions: "RUN ln -s gcc /usr/bin/cc\nENV PATH=/toolchain/bin:/usr/bin:/bin CARGO_HOME=/cargo\n",
};

/// Builds both images.
pub(super) fn make(
    paths: &Paths,
    folder: &Path,
    options: &Options,
    toolchain: &Toolchain,
    revision: &str,
) -> Result<()> {
    // buildah does not set BUILDPLATFORM for the platform of a stage.
    let mut shared = vec![
        format!("--build-arg=BUILDPLATFORM=linux/{ARCHITECTURE}"),
        format!("--build-arg=VERSION={VERSION}"),
        format!("--build-arg=REVISION={revision}"),
    ];
    let builder = if let Some(builder) = &options.builder {
        builder.clone()
    } else {
        shared.extend(["--pull-never".to_owned(), "--build-arg=CARGO_NET_OFFLINE=true".to_owned()]);
        shared.push(format!("--volume={}:/toolchain:ro", toolchain.folder.display()));
        shared.push(format!("--volume={}:/cargo/registry", registry(paths)?.display()));
        BUILDER.ensure(paths)?
    };
    shared.push(format!("--build-arg=BUILDER={builder}"));
    let log = paths.log("release-images");
    for architecture in &options.architectures {
        let base = options.base.clone().map_or_else(|| base(architecture).ensure(paths), Ok)?;
        // The second program comes from the cache of the first one's build stage. buildah does not compare the values of
        // arguments, so the cache of another architecture or an earlier run must be gone.
        prune(paths)?;
        for program in PROGRAMS {
            let step = Step::start(format!("building {program} for {architecture}"));
            let mut build = buildah(paths);
            build
                .args(["bud", "--layers", "--isolation=chroot", "--platform", &format!("linux/{architecture}")])
                .args(&shared)
                .args([&format!("--build-arg=BASE={base}"), "--target", program, "--tag", &part(program, architecture)])
                .arg("--file")
                .arg(paths.root.join("Dockerfile"))
                .arg(&paths.root);
            run_logged(&mut build, &log, || step.tick("compiling"))?;
            step.done();
        }
    }
    for program in PROGRAMS {
        let name = name(&options.repository, program);
        let archive = file(folder, program, "oci.tar");
        let step = Step::start(format!("writing {}", archive.display()));
        let to = format!("oci-archive:{}:{name}", archive.display());
        let parts: Vec<_> = options.architectures.iter().map(|architecture| part(program, architecture)).collect();
        // Left by a run that was interrupted, if it exists.
        drop(run_logged(buildah(paths).args(["manifest", "rm", &name]), &log, || step.tick("")));
        let mut commands = vec![vec!["manifest", "create", &name]];
        commands.extend(parts.iter().map(|part| vec!["manifest", "add", &name, part]));
        commands.push(vec!["manifest", "push", "--all", &name, &to]);
        // Only the archives are kept.
        commands.push(vec!["manifest", "rm", &name]);
        commands.extend(parts.iter().map(|part| vec!["rmi", part]));
        for command in commands {
            run_logged(buildah(paths).args(command), &log, || step.tick(""))?;
        }
        step.done();
    }
    prune(paths)
}

/// Removes all images without a name.
fn prune(paths: &Paths) -> Result<()> {
    run_logged(buildah(paths).args(["rmi", "--prune", "--force"]), &paths.log("release-prune"), || ())
}

/// Returns the name of a program's image for one architecture.
fn part(program: &str, architecture: &str) -> String {
    format!("localhost/release/{program}:{architecture}")
}

pub(super) fn name(repository: &str, program: &str) -> String {
    format!("{repository}/{program}:{VERSION}")
}

/// Debian's C library and certificates.
fn base(architecture: &str) -> Debian<'_> {
    Debian {
        name: "gpu-operator-base",
        packages: &["libc6", "libgcc-s1", "ca-certificates"],
        architecture,
        instructions: "",
    }
}

/// Downloads all dependencies, and returns cargo's folder of them.
fn registry(paths: &Paths) -> Result<PathBuf> {
    let step = Step::start("downloading the dependencies");
    let mut fetch = cargo::command(&paths.root);
    run_logged(fetch.args(["fetch", "--locked"]), &paths.log("release-fetch"), || step.tick(""))?;
    step.done();
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    Ok(home.context("neither CARGO_HOME nor HOME is set")?.join("registry"))
}
