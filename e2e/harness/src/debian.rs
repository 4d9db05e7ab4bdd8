//! NVIDIA's own libraries and programs, promtool and Docker, as packaged by Debian, for tests. They are never shipped. The packages are
//! fetched from the mirrors in the machine's apt sources, compared with pinned checksums and unpacked in `target/e2e`;
//! the machine's apt sources and its dpkg database stay unchanged.

mod mirror;
mod package;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use self::{
    mirror::Mirrors,
    package::{Package, TABLE, TABLE_FILE},
};
use super::{
    files::{hex, remove_tree},
    paths::Paths,
    process::output,
    progress::Step,
};

/// A driver by NVIDIA, without its kernel module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// NVIDIA's version, such as `535.261.03`.
    pub version: String,
    /// The folder with the files of its packages. It is not the root of a complete system.
    pub root: PathBuf,
}

/// Returns the driver of a branch, such as `535`. Its packages are fetched and unpacked once.
pub fn driver(branch: &str) -> Result<Driver> {
    let packages = package::of_branch(TABLE, branch)?;
    let Some(version) = packages.first().and_then(Package::driver) else {
        bail!("{TABLE_FILE} lists no package of branch {branch}");
    };
    let root = unpacked(version, &format!("NVIDIA's driver {version}"), &packages)?;
    Ok(Driver { version: version.to_owned(), root })
}

/// Returns the path of promtool, which checks and tests alerts. Its package is fetched and unpacked once.
pub fn promtool() -> Result<PathBuf> {
    let package = package::named(TABLE, "prometheus")?;
    Ok(unpacked("prometheus", "promtool", &[package])?.join("usr/bin/promtool"))
}

/// The programs of Docker.
#[derive(Clone, Debug)]
pub struct Docker {
    pub daemon: PathBuf,
    /// The program `docker`.
    pub client: PathBuf,
}

/// Returns Docker. Its package is fetched and unpacked once.
pub fn docker() -> Result<Docker> {
    let package = package::named(TABLE, "docker.io")?;
    let root = unpacked("docker", "Docker", &[package])?;
    Ok(Docker { daemon: root.join("usr/sbin/dockerd"), client: root.join("usr/bin/docker") })
}

#[cfg(test)]
pub(crate) fn docker_version() -> Option<&'static str> {
    package::named(TABLE, "docker.io").ok().and_then(|package| package.version())
}

/// Returns the folder `name`, into which packages have been unpacked. `what` describes them.
fn unpacked(name: &str, what: &str, packages: &[Package<'_>]) -> Result<PathBuf> {
    // Tests call this at the same time.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let paths = Paths::new();
    let root = paths.debian().join(name);
    let stamp = hex(&Sha256::digest(format!("{packages:?}")));
    let stamp_file = paths.stamps().join(format!("debian-{name}"));
    if root.is_dir() && fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp) {
        return Ok(root);
    }
    let step = Step::start(format!("fetching {what} from a Debian mirror"));
    unpack(&paths, packages, &root)?;
    fs::create_dir_all(paths.stamps())?;
    fs::write(stamp_file, stamp)?;
    step.done();
    Ok(root)
}

/// Unpacks packages into the folder `root`, which appears only once it is complete.
fn unpack(paths: &Paths, packages: &[Package<'_>], root: &Path) -> Result<()> {
    let mirrors = Mirrors::of_this_machine(paths)?;
    let (file, new) = (paths.debian().join("package.deb"), paths.debian().join("new"));
    for folder in [&new, root] {
        remove_tree(folder)?;
    }
    fs::create_dir_all(&new)?;
    for package in packages {
        let url = mirrors.fetch(package, &file)?;
        package.check(&fs::read(&file)?).with_context(|| format!("{url} differs from the pinned checksum"))?;
        output(Command::new("dpkg-deb").arg("-x").args([&file, &new]))?;
    }
    fs::remove_file(file)?;
    Ok(fs::rename(new, root)?)
}
