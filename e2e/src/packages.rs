//! What the machine must have, and Debian's packages for it.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};
use nix::unistd::Uid;

use crate::{paths::Paths, process::run_logged, progress::Step};

/// A Debian package and a file that is there when it is installed: a command's name, or an absolute path.
struct Package {
    name: &'static str,
    provides: &'static str,
}

/// For building the tools.
const BUILD: &[Package] = &[
    Package { name: "gcc", provides: "gcc" },
    Package { name: "libc6-dev", provides: "/usr/include/stdlib.h" },
    Package { name: "libseccomp-dev", provides: "/usr/include/seccomp.h" },
    Package { name: "pkg-config", provides: "pkg-config" },
];

/// For the node and its images.
const NODE: &[Package] = &[
    Package { name: "buildah", provides: "buildah" },
    Package { name: "mmdebstrap", provides: "mmdebstrap" },
    Package { name: "containernetworking-plugins", provides: "/usr/lib/cni/bridge" },
    Package { name: "iproute2", provides: "ip" },
];

/// Installs what is missing. With `node`, also what only a real node needs.
pub(crate) fn install(paths: &Paths, node: bool) -> Result<()> {
    if find("go").is_none() {
        bail!("the cluster's tools are built from Go modules: install Go 1.26 or later and try again");
    }
    let wanted = BUILD.iter().chain(if node { NODE } else { &[] });
    let missing: Vec<&str> = wanted.filter(|package| !present(package.provides)).map(|package| package.name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if find("apt-get").is_none() {
        bail!("missing on this machine: {list} (Debian's names). Install them and try again");
    }
    if !Uid::effective().is_root() {
        bail!("missing on this machine: {list}. Run `sudo apt-get install {list}` and try again");
    }
    let step = Step::start(format!("installing Debian packages: {list}"));
    let log = paths.log("apt");
    let mut update = Command::new("apt-get");
    run_logged(update.args(["update", "-qq"]), &log, || step.tick("updating the lists"))?;
    let mut install = Command::new("apt-get");
    install
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "-qq", "-y", "--no-install-recommends"])
        .args(&missing);
    run_logged(&mut install, &log, || step.tick("installing"))?;
    step.done();
    Ok(())
}

fn present(what: &str) -> bool {
    if what.starts_with('/') { Path::new(what).exists() } else { find(what).is_some() }
}

/// A command's place on PATH, or in the folders of the system's own commands.
pub(crate) fn find(command: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(command))
        .find(|file| file.is_file())
}
