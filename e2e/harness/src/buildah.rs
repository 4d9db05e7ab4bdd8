//! buildah, with its storage in `target/e2e`, and base images made of Debian packages: images are built without a container
//! engine and without a registry.

use std::{fs, process::Command};

use anyhow::Result;
use sha2::{Digest, Sha256};

use super::{
    files::{hex, write},
    paths::Paths,
    process::run_logged,
    progress::Step,
};

/// Returns a command of buildah, run by this program's `scratch`.
pub fn buildah(paths: &Paths) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["scratch", "--", "buildah", "--storage-driver", "vfs", "--root"])
        .arg(paths.images().join("storage"))
        .arg("--runroot")
        .arg(paths.images().join("run"));
    command
}

/// An image that contains the files of Debian packages. They are unpacked and not configured, so that it can be built for
/// another architecture.
pub struct Debian<'a> {
    /// The name of the image, without the tag.
    pub name: &'a str,
    /// The packages; those that they depend on are added.
    pub packages: &'a [&'a str],
    /// The architecture, as Debian and Docker name it.
    pub architecture: &'a str,
    /// Further instructions of the image's Dockerfile.
    pub instructions: &'a str,
}

impl Debian<'_> {
    /// Builds the image if it does not exist or an input has changed, and returns its name with a tag that identifies the
    /// inputs.
    pub fn ensure(&self, paths: &Paths) -> Result<String> {
        let (suite, packages) = (suite(), self.packages.join(","));
        let dockerfile = format!("FROM scratch\nADD base.tar /\n{}", self.instructions);
        let hash = hex(&Sha256::digest(format!("{suite} {packages} {} {dockerfile}", self.architecture)));
        let image = format!("localhost/{}:{}", self.name, &hash[..12]);
        let stamp = paths.images().join(format!("{}-{}.stamp", self.name, self.architecture));
        if fs::read_to_string(&stamp).is_ok_and(|old| old == hash) {
            return Ok(image);
        }
        fs::create_dir_all(paths.images())?;
        let step = Step::start(format!("building {} from Debian packages ({suite}, {})", self.name, self.architecture));
        let log = paths.log("base-image");
        let context = tempfile::tempdir_in(paths.images())?;
        let mut strap = Command::new("mmdebstrap");
        strap
            .env("TMPDIR", paths.images())
            .args(["--variant=extract", "--architectures", self.architecture, "--include", &packages, &suite])
            .arg(context.path().join("base.tar"));
        run_logged(&mut strap, &log, || step.tick("fetching packages"))?;
        write(&context.path().join("Dockerfile"), &dockerfile)?;
        let mut build = buildah(paths);
        build.args(["bud", "--isolation", "chroot", "--arch", self.architecture, "--tag", &image]).arg(context.path());
        run_logged(&mut build, &log, || step.tick("building"))?;
        fs::write(stamp, &hash)?;
        step.done();
        Ok(image)
    }
}

/// Debian's name of the machine's architecture.
pub const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// Returns the machine's own release, because the programs are linked against its C library; Debian 12 if it is
/// unknown.
fn suite() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    codename.filter(|name| !name.is_empty()).unwrap_or("bookworm").to_owned()
}
