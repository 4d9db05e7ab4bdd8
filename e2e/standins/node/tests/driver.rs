//! The driver's binary, in a mount namespace of its own as in a container. Needs root, as all mounting does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests too

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

const VERSION: &str = "595.91.07";
const LIMIT: Duration = Duration::from_secs(20);
/// `steer` renames, so that the driver never reads half a file.
const STEERING: &str = "standin/driver.json";

/// A node: a namespace with a shared /run/nvidia, in which drivers run, and its folders.
struct Node {
    folder: tempfile::TempDir,
    keeper: Child,
}

impl Node {
    /// `None`, and a word about it, where the tests may not mount.
    fn new() -> Option<Self> {
        if !Uid::effective().is_root() {
            eprintln!("skipped: mounting needs root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        for part in ["standin/lock", "standin/module", "image/dev", "image/usr/lib/x86_64-linux-gnu", "run"] {
            fs::create_dir_all(folder.path().join(part)).unwrap();
        }
        fs::write(folder.path().join("image/usr/lib/library"), VERSION).unwrap();
        let library = format!("image/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{VERSION}");
        fs::write(folder.path().join(library), "").unwrap();
        fs::write(folder.path().join("standin/gpus.json"), r#"{"devices":[{"minor":0},{"minor":3}]}"#).unwrap();
        fs::write(folder.path().join("termination-log"), "").unwrap();
        // The namespace of the node: it lives as long as this process, and with it every mount.
        let script = "mount -t tmpfs node run && mount --make-shared run && mkdir run/standin \
                      && mount --bind standin run/standin && touch run/ready && exec sleep 600";
        let keeper = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", script])
            .current_dir(folder.path())
            .spawn()
            .unwrap();
        let node = Self { folder, keeper };
        until("the node is up", || node.seen("run/ready").exists());
        Some(node)
    }

    /// A path as the processes of the node see it.
    fn seen(&self, path: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper.id()));
        root.join(self.folder.path().strip_prefix("/").unwrap()).join(path)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn steer(&self, json: &str) {
        fs::write(self.path("standin/new"), json).unwrap();
        fs::rename(self.path("standin/new"), self.path(STEERING)).unwrap();
    }

    fn driver(&self) -> Driver {
        self.driver_of("image")
    }

    /// Starts a driver in a namespace that copies the node's, as a container's with mount propagation does.
    fn driver_of(&self, image: &str) -> Driver {
        let keeper = self.keeper.id().to_string();
        let mut child = Command::new("nsenter")
            .args(["-t", &keeper, "-m", "unshare", "-m", "--propagation", "unchanged"])
            .args([env!("CARGO_BIN_EXE_nvidia-driver"), "init"])
            .env("DRIVER_VERSION", VERSION)
            .env("STANDIN_DIR", self.path("run/standin"))
            .env("STANDIN_OWN_ROOT", self.path(image))
            .env("DRIVER_ROOT", self.path("run/driver"))
            .env("TERMINATION_LOG", self.path("termination-log"))
            .env("STANDIN_LOAD_MS", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stdout.take().unwrap());
        Driver { child, log }
    }

    fn loaded(&self) -> Option<String> {
        fs::read_to_string(self.path("standin/module/nvidia/version")).ok().map(|text| text.trim().into())
    }

    fn shows_root(&self) -> bool {
        self.seen("run/driver/usr/lib/library").exists()
    }

    /// How many mounts lie on each other where the root is shown.
    fn layers(&self) -> usize {
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", self.keeper.id())).unwrap();
        let place = self.path("run/driver").display().to_string();
        mounts.lines().filter(|line| line.split(' ').nth(4) == Some(&place)).count()
    }

    fn last_words(&self) -> String {
        fs::read_to_string(self.path("termination-log")).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

struct Driver {
    child: Child,
    log: BufReader<ChildStdout>,
}

impl Driver {
    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Waits for a line of the driver's log.
    fn says(&mut self, wanted: &str) {
        let line = self.log.by_ref().lines().map(Result::unwrap).find(|line| line.contains(wanted));
        assert!(line.is_some(), "the driver ended without saying {wanted:?}");
    }

    fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LIMIT, "the driver goes on");
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

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "never: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.file_type().is_char_device())
}

#[test]
fn a_driver_loads_shows_its_root_to_the_node_and_takes_both_back() {
    let Some(node) = Node::new() else { return };
    let mut driver = node.driver();
    until("the root is shown", || node.shows_root());
    // Whoever sees the library sees all the rest.
    for device in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia3"] {
        assert!(is_device(&node.seen("run/driver/dev").join(device)), "{device}");
    }
    assert!(node.seen("run/driver/etc/standin/gpus.json").exists());
    let library = fs::read_link(node.seen("run/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")).unwrap();
    assert_eq!(library, Path::new("libnvidia-ml.so.595.91.07"));
    assert_eq!(node.loaded().as_deref(), Some(VERSION));
    assert_eq!(fs::read_to_string(node.path("standin/module/nvidia/refcnt")).unwrap(), "0\n");
    // Mounted for the node only: outside of it nothing changed.
    assert!(!node.path("run/driver").exists());

    fs::write(node.path("standin/gpus.json"), r#"{"devices":[{"minor":5}]}"#).unwrap();
    until("a new GPU has a device node", || is_device(&node.seen("run/driver/dev/nvidia5")));

    driver.send(Signal::SIGTERM);
    assert!(driver.ended().success());
    assert!(!node.shows_root());
    assert_eq!(node.loaded(), None);
    // What the harness mounted beside it is untouched.
    assert!(node.seen("run/standin/gpus.json").exists());
}

#[test]
fn a_driver_that_is_held_back_begins_when_it_may() {
    let Some(node) = Node::new() else { return };
    node.steer(r#"{"mode":"hold"}"#);
    let mut driver = node.driver();
    driver.says("held back");
    assert!(!node.shows_root());
    assert_eq!(node.loaded(), None);
    fs::remove_file(node.path(STEERING)).unwrap();
    until("the root is shown", || node.shows_root());
    driver.send(Signal::SIGTERM);
    assert!(driver.ended().success());
}

#[test]
fn a_driver_that_crashes_leaves_its_message_and_its_successor_recovers() {
    let Some(node) = Node::new() else { return };
    let mut first = node.driver();
    until("the root is shown", || node.shows_root());
    node.steer(r#"{"mode":"crash","message":"no such kernel headers"}"#);
    assert_eq!(first.ended().code(), Some(1));
    assert_eq!(node.last_words(), "no such kernel headers");
    assert!(node.shows_root(), "a crash cleans nothing up");
    assert_eq!(node.driver().ended().code(), Some(1));

    node.steer(r#"{"mode":"ok"}"#);
    for part in ["dev", "usr/lib/renewed"] {
        fs::create_dir_all(node.path("second").join(part)).unwrap();
    }
    let mut second = node.driver_of("second");
    until("the root is renewed", || node.seen("run/driver/usr/lib/renewed").exists());
    assert_eq!(node.layers(), 1, "the crashed one's mount is not below");
    second.send(Signal::SIGTERM);
    assert!(second.ended().success());
    assert!(!node.seen("run/driver/usr").exists(), "no layer of the crashed one is left");
}

#[test]
fn a_driver_in_use_is_neither_replaced_nor_unloaded() {
    let Some(node) = Node::new() else { return };
    let mut first = node.driver();
    until("the root is shown", || node.shows_root());
    let user = File::open(node.path("standin/lock/nvml.lock")).unwrap();
    user.try_lock_shared().unwrap();
    first.send(Signal::SIGTERM);
    assert!(first.ended().success());
    assert_eq!(node.loaded().as_deref(), Some(VERSION));

    // The same version: only the root is renewed, and whoever uses the driver goes on.
    let mut same = node.driver();
    until("the root is shown", || node.shows_root());
    same.send(Signal::SIGTERM);
    assert!(same.ended().success());

    fs::write(node.path("standin/module/nvidia/version"), "580.173.02\n").unwrap();
    assert_eq!(node.driver().ended().code(), Some(1));
    assert_eq!(node.last_words(), "Could not unload NVIDIA driver kernel modules, driver is in use");
    assert_eq!(node.loaded().as_deref(), Some("580.173.02"));

    drop(user);
    let _next = node.driver();
    until("the driver is replaced", || node.loaded().as_deref() == Some(VERSION));
}

#[test]
fn a_driver_that_loaded_the_wrong_version_mends_when_the_cause_is_gone() {
    let Some(node) = Node::new() else { return };
    node.steer(r#"{"mode":"wrong-version","loads":"590.10.01"}"#);
    let _driver = node.driver();
    until("the root is shown", || node.shows_root());
    assert_eq!(node.loaded().as_deref(), Some("590.10.01"));
    fs::remove_file(node.path(STEERING)).unwrap();
    until("the right one is loaded", || node.loaded().as_deref() == Some(VERSION));
}
