//! Debian's driver, injected by the probe into a container as in the operator's pod for MPS, without a GPU.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

use harness::debian::Driver;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use tempfile::TempDir;

use crate::{
    smi::NO_DRIVER,
    support::{BRANCHES_WITH_MPS, LIBRARIES, alternative, built, contained, folder, real},
};

/// An installed driver, as on a node.
pub struct Installed(TempDir);

impl Installed {
    /// Creates the files of Debian's packages and the links that their installation creates.
    pub fn of(driver: &Driver) -> Self {
        let installed = Self(folder());
        let root = installed.root();
        Self::copy(driver, root);
        alternative(root, "usr/bin/nvidia-smi", "nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi");
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            let of_branch = format!("/{LIBRARIES}/nvidia/current/{name}");
            alternative(root, &format!("{LIBRARIES}/{name}"), &format!("{name}-x86_64-linux-gnu"), &of_branch);
        }
        installed
    }

    /// Copies the files of Debian's packages into a root.
    pub fn copy(driver: &Driver, root: &Path) {
        let status = Command::new("cp").arg("-a").arg(driver.root.join("usr")).arg(root).status().expect("cp");
        assert!(status.success(), "copying {} failed", driver.root.display());
    }

    pub fn root(&self) -> &Path {
        self.0.path()
    }

    /// Returns a command for a program with only this environment, in a container into which the probe injects the
    /// driver.
    pub fn injected(&self, environment: &[String], program: &[&str]) -> Command {
        let mut command = contained(Path::new("env"));
        command.arg("-i").args(environment).arg(built("nvml-probe"));
        command.args(["inject", "--driver-root"]).arg(self.root()).args(["--mps", "--"]).args(program);
        command
    }

    fn output(&self, program: &[&str]) -> Output {
        self.injected(&[], program).output().expect("unshare")
    }
}

#[test]
fn nvidia_smi_and_its_library_are_found_without_an_environment() {
    for branch in BRANCHES_WITH_MPS {
        let output = Installed::of(&real(branch)).output(&["nvidia-smi", "-c", "EXCLUSIVE_PROCESS"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!((text.trim(), output.status.code()), (NO_DRIVER, Some(9)), "{branch}: {output:?}");
    }
}

#[test]
fn only_the_drivers_device_nodes_are_created_in_the_container() {
    let driver = Installed::of(&real("535"));
    let dev = driver.root().join("dev");
    fs::create_dir_all(dev.join("nvidia-caps")).expect("folders");
    let nodes = [("nvidia0", 0, 0o666), ("nvidiactl", 255, 0o666), ("nvidia-caps/nvidia-cap1", 1, 0o400)];
    for (name, minor, mode) in nodes.into_iter().chain([("zero", 5, 0o666), ("null", 7, 0o666)]) {
        let node = dev.join(name);
        mknod(&node, SFlag::S_IFCHR, Mode::empty(), makedev(195, minor)).expect("a device node");
        fs::set_permissions(node, Permissions::from_mode(mode)).expect("a mode");
    }
    fs::write(dev.join("nvidia-modeset"), "no device node").expect("written");
    let output = driver.output(&["find", "/dev", "-type", "c", "-exec", "stat", "-c", "%n %Hr:%Lr %a", "{}", "+"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let mut found: Vec<&str> = text.lines().collect();
    found.sort_unstable();
    let expected = [
        "/dev/null 1:3 666",
        "/dev/nvidia-caps/nvidia-cap1 195:1 400",
        // An MPS server runs as its clients' user.
        "/dev/nvidia0 195:0 666",
        "/dev/nvidiactl 195:255 666",
    ];
    assert_eq!(found, expected, "{output:?}");
}
