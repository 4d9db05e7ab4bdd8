//! The programs under test, and hosts that have a real driver's files.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use harness::debian::{Driver, driver};
use nix::unistd::Uid;

pub use e2e::host::{Process, bare, built, folder};
pub use test_support::host::Host;

/// The branches that Debian packages.
pub const BRANCHES: [&str; 3] = ["470", "535", "550"];
/// The branches of which Debian packages MPS.
pub const BRANCHES_WITH_MPS: [&str; 2] = ["535", "550"];
/// The GPU on the bus of every host: a Tesla K80.
pub const GPU: &str = "0000:06:00.0";

/// Debian's folder for libraries.
pub const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

const OWN_DEV: &str = "mount -t tmpfs -o mode=755 dev /dev && mknod -m 666 /dev/null c 1 3 && mkdir -m 1777 /dev/shm";

/// Returns the driver of a branch, for a test that needs the permissions to change its root and to mount.
pub fn real(branch: &str) -> Driver {
    assert!(
        Uid::effective().is_root(),
        "these tests need root, to keep NVIDIA's libraries away from this machine's /dev"
    );
    driver(branch).unwrap_or_else(|error| panic!("{error:#}"))
}

/// Returns the path of a driver's library in its root, in Debian's folder for its branch.
pub fn library(driver: &Driver) -> String {
    let folder = if driver.version.starts_with("470.") { "tesla-470" } else { "current" };
    format!("/{LIBRARIES}/nvidia/{folder}/libnvidia-ml.so.{}", driver.version)
}

/// Returns a host with a GPU and without a loaded module.
pub fn host_with_gpu() -> Host {
    let host = bare();
    host.gpu(GPU, "0x102d");
    host
}

/// Copies a driver's NVML to the path that it has in its package.
pub fn unpack(host: &Host, driver: &Driver) {
    let library = library(driver);
    let folder = Path::new(&library).parent().expect("a folder");
    let (from, to) =
        (driver.root.join(folder.strip_prefix("/").expect("absolute")), host.path(&folder.to_string_lossy()));
    fs::create_dir_all(&to).expect("folders");
    let entries = fs::read_dir(from).expect("the package").flatten();
    let of_nvml = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("libnvidia-ml.so"));
    let files: Vec<PathBuf> = of_nvml.map(|entry| entry.path()).collect();
    let status = Command::new("cp").arg("-a").args(&files).arg(&to).status().expect("cp");
    assert!(status.success(), "copying {files:?} failed");
}

/// Does the rest of an installation: creates the links of Debian's alternatives, and runs ldconfig.
pub fn configure(host: &Host, driver: &Driver) {
    let library = library(driver);
    let linked = library.trim_end_matches(&driver.version).to_owned() + "1";
    let name = "libnvidia-ml.so.1";
    alternative(&host.path(""), &format!("{LIBRARIES}/{name}"), &format!("{name}-x86_64-linux-gnu"), &linked);
    host.write("etc/ld.so.conf", &format!("/{LIBRARIES}\n"));
    let status = Command::new("/sbin/ldconfig").arg("-r").arg(host.path("")).status().expect("ldconfig");
    assert!(status.success() && host.path("etc/ld.so.cache").exists());
}

/// Returns a command for one of NVIDIA's programs with its own /dev, because its libraries create device nodes there.
/// The program replaces the started process.
pub fn confined(program: &Path) -> Command {
    mounted(OWN_DEV, program)
}

/// Returns a command for a program in a kind of container with this machine's files. Files that it creates in `/dev`
/// and `/usr` disappear with it.
pub fn contained(program: &Path) -> Command {
    // The overlay's upper folder is on a tmpfs, which works whatever file system this machine's folders are on.
    let own_usr = "mkdir /dev/upper /dev/work \
                   && mount -t overlay -o lowerdir=/usr,upperdir=/dev/upper,workdir=/dev/work usr /usr";
    mounted(&format!("{OWN_DEV} && {own_usr}"), program)
}

/// Returns a command for a program that starts after mounts that are visible only to it.
fn mounted(mounts: &str, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &format!("{mounts} && exec \"$@\""), "sh"]);
    command.arg(program).env("HOME", "/nowhere");
    command
}

/// Links a path in a root to another path through `/etc/alternatives`, as the installation of Debian's packages does.
pub fn alternative(root: &Path, path: &str, name: &str, target: &str) {
    let alternative = format!("/etc/alternatives/nvidia--{name}");
    for (link, target) in [(alternative.as_str(), target), (path, &alternative)] {
        let link = root.join(link.trim_start_matches('/'));
        fs::create_dir_all(link.parent().expect("a folder")).expect("folders");
        symlink(target, link).expect("a link");
    }
}
