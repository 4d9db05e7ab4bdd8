//! Programs and libraries that the machine must have, and the Debian packages that provide them.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};
use nix::unistd::Uid;

use super::{paths::Paths, process::run_logged, progress::Step};

/// A Debian package, and a file that exists once it is installed: the name of a command, or an absolute path.
struct Package {
    name: &'static str,
    provides: &'static str,
}

/// Packages for building the tools.
const BUILD: &[Package] = &[
    Package { name: "gcc", provides: "gcc" },
    Package { name: "libc6-dev", provides: "/usr/include/stdlib.h" },
    Package { name: "libseccomp-dev", provides: "/usr/include/seccomp.h" },
    Package { name: "pkg-config", provides: "pkg-config" },
];

/// Packages for real nodes and their images.
const NODE: &[Package] = &[
    Package { name: "buildah", provides: "buildah" },
    Package { name: "mmdebstrap", provides: "mmdebstrap" },
    Package { name: "containernetworking-plugins", provides: "/usr/lib/cni/bridge" },
    Package { name: "iproute2", provides: "ip" },
];

/// Packages for building the command line for other platforms.
const CROSS: &[Package] = &[
    Package { name: "gcc-aarch64-linux-gnu", provides: "aarch64-linux-gnu-gcc" },
    Package { name: "libc6-dev-arm64-cross", provides: "/usr/aarch64-linux-gnu/include/stdlib.h" },
    Package { name: "gcc-mingw-w64-x86-64", provides: "x86_64-w64-mingw32-gcc" },
];

/// What packages are needed for, besides building the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Tools,
    /// Real nodes and their images.
    Nodes,
    /// Images and programs for all platforms.
    Release,
}

/// Installs missing packages.
pub fn install(paths: &Paths, purpose: Purpose) -> Result<()> {
    if find("go").is_none() {
        bail!("the cluster's tools are built from Go modules: install Go 1.26 or later, then try again");
    }
    let wanted = match purpose {
        Purpose::Tools => [BUILD, &[], &[]],
        Purpose::Nodes => [BUILD, NODE, &[]],
        Purpose::Release => [BUILD, NODE, CROSS],
    };
    let wanted = wanted.into_iter().flatten();
    let missing: Vec<&str> =
        wanted.filter(|package| !is_present(package.provides)).map(|package| package.name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if find("apt-get").is_none() {
        bail!("missing on this machine: {list} (names of Debian packages). Install them, then try again");
    }
    if !Uid::effective().is_root() {
        bail!("missing on this machine: {list}. Run `sudo apt-get install {list}`, then try again");
    }
    let step = Step::start(format!("installing Debian packages: {list}"));
    let log = paths.log("apt");
    let mut update = Command::new("apt-get");
    run_logged(update.args(["update", "-qq"]), &log, || step.tick("updating the package lists"))?;
    let mut install = Command::new("apt-get");
    install
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "-qq", "-y", "--no-install-recommends"])
        .args(&missing);
    run_logged(&mut install, &log, || step.tick("installing"))?;
    step.done();
    Ok(())
}

fn is_present(command_or_path: &str) -> bool {
    if command_or_path.starts_with('/') { Path::new(command_or_path).exists() } else { find(command_or_path).is_some() }
}

/// Returns the path of a command on `PATH` or in the folders of system commands.
pub fn find(command: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(command))
        .find(|file| file.is_file())
}
