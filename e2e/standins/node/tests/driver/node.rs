//! A node, and the driver containers that run on it.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, Uid},
};

pub const VERSION: &str = "595.91.07";
pub const LIMIT: Duration = Duration::from_secs(20);
/// The steering file. `Node::steer` renames it into place, so that the driver never reads an incomplete file.
pub const STEERING: &str = "standin/driver.json";
pub const IN_USE: &str = "Could not unload NVIDIA driver kernel modules, driver is in use";
pub const PROC_DEVICES: &str = "Character devices:\n  1 mem\n\nBlock devices:\n";
pub const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Creates the files of an image: those that it installs, and one in its own root.
pub fn image(folder: &Path, name: &str) {
    let image = folder.join(name);
    for part in ["dev", "drivers", "usr/lib"] {
        fs::create_dir_all(image.join(part)).unwrap();
    }
    for file in ["usr/lib/library", "drivers/libstandin_nvml.so", "drivers/nvidia-smi"] {
        fs::write(image.join(file), name).unwrap();
    }
}

/// A node: a namespace with a shared /run/nvidia, in which drivers run, and its folders.
pub struct Node {
    pub folder: tempfile::TempDir,
    pub keeper: Child,
}

impl Node {
    /// Starts a node. If this user cannot mount, prints that the test is skipped and returns `None`.
    pub fn new() -> Option<Self> {
        if !Uid::effective().is_root() {
            eprintln!("skipped: mounting needs root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        for part in ["standin/lock", "standin/module", "run"] {
            fs::create_dir_all(folder.path().join(part)).unwrap();
        }
        image(folder.path(), "image");
        fs::write(folder.path().join("standin/proc-devices"), PROC_DEVICES).unwrap();
        fs::write(folder.path().join("standin/gpus.json"), r#"{"devices":[{"minor":0},{"minor":3}]}"#).unwrap();
        fs::write(folder.path().join("termination-log"), "").unwrap();
        // The node's namespace, with all mounts in it, exists as long as this process.
        let script = "mount -t tmpfs node run && mount --make-shared run && touch run/ready && exec sleep 600";
        let keeper = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", script])
            .current_dir(folder.path())
            .spawn()
            .unwrap();
        let node = Self { folder, keeper };
        until("the node is running", || node.seen("run/ready").exists());
        Some(node)
    }

    /// Returns a path as the processes of the node see it.
    pub fn seen(&self, path: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper.id()));
        root.join(self.folder.path().strip_prefix("/").unwrap()).join(path)
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub fn steer(&self, json: &str) {
        fs::write(self.path("standin/new"), json).unwrap();
        fs::rename(self.path("standin/new"), self.path(STEERING)).unwrap();
    }

    /// Starts a driver of a current image, without a digest.
    pub fn driver(&self) -> Driver {
        self.driver_of("image", "current", None)
    }

    /// Starts a driver in a copy of the node's mount namespace, as for a container with mount propagation.
    pub fn driver_of(&self, image: &str, kind: &str, digest: Option<&str>) -> Driver {
        let keeper = self.keeper.id().to_string();
        let mut child = Command::new("nsenter")
            .args(["-t", &keeper, "-m", "unshare", "-m", "--propagation", "unchanged"])
            .args([env!("CARGO_BIN_EXE_nvidia-driver"), "init"])
            .env("STANDIN_KIND", kind)
            .env("DRIVER_VERSION", VERSION)
            .envs(digest.map(|digest| ("DRIVER_CONFIG_DIGEST", digest)))
            .env("STANDIN_DIR", self.path("standin"))
            .env("STANDIN_OWN_ROOT", self.path(image))
            .env("STANDIN_RUN", self.path("run"))
            .env("TERMINATION_LOG", self.path("termination-log"))
            .env("STANDIN_LOAD_MS", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stdout.take().unwrap());
        Driver { child, log }
    }

    pub fn loaded(&self) -> Option<String> {
        fs::read_to_string(self.path("standin/module/nvidia/version")).ok().map(|text| text.trim().into())
    }

    pub fn shows_root(&self) -> bool {
        self.seen("run/driver/usr/lib/library").exists()
    }

    /// Returns the number of mounts stacked on the path where the root is visible.
    pub fn layers(&self) -> usize {
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", self.keeper.id())).unwrap();
        let place = self.path("run/driver").display().to_string();
        mounts.lines().filter(|line| line.split(' ').nth(4) == Some(&place)).count()
    }

    pub fn loads(&self) -> usize {
        fs::read_to_string(self.path("standin/loads")).map_or(0, |text| text.lines().count())
    }

    /// Returns the content of the driver containers' state file, as the node sees it.
    pub fn state(&self) -> Option<String> {
        fs::read_to_string(self.seen("run/nvidia-driver.state")).ok()
    }

    /// Uses the driver until the file is dropped, as a program with NVML open does.
    pub fn user(&self) -> File {
        let user = File::open(self.path("standin/lock/nvml.lock")).unwrap();
        user.try_lock_shared().unwrap();
        user
    }

    pub fn termination_message(&self) -> String {
        fs::read_to_string(self.path("termination-log")).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

pub struct Driver {
    pub child: Child,
    pub log: BufReader<ChildStdout>,
}

impl Driver {
    pub fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Waits until the driver logs a line that contains `wanted`.
    pub fn wait_for_log(&mut self, wanted: &str) {
        let line = self.log.by_ref().lines().map(Result::unwrap).find(|line| line.contains(wanted));
        assert!(line.is_some(), "the driver ended without logging {wanted:?}");
    }

    pub fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LIMIT, "the driver is still running");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.file_type().is_char_device())
}
