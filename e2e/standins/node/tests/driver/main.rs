//! The driver's program, in a mount namespace of its own as in a container. Mounting needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests too

mod node;

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
};

use nix::{
    sys::{
        signal::Signal,
        stat::{Mode, SFlag, makedev, mknod},
    },
    unistd::Uid,
};
use node::{IN_USE, LIBRARIES, Node, PROC_DEVICES, STEERING, VERSION, image, is_device, until};
use standin_node::driver::proc_devices::UVM_MAJOR;

#[test]
fn a_driver_loads_shows_its_root_and_undoes_both_at_its_end() {
    let Some(node) = Node::new() else { return };
    let mut driver = node.driver();
    until("the root is visible", || node.shows_root());
    // A process that sees the library also sees all other files.
    for device in ["nvidiactl", "nvidia0", "nvidia3"] {
        assert!(is_device(&node.seen("run/driver/dev").join(device)), "{device}");
    }
    for other in ["nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"] {
        assert!(!node.seen("run/driver/dev").join(other).exists(), "{other}");
    }
    assert!(node.seen("run/driver/etc/standin/gpus.json").exists());
    let library = fs::read_link(node.seen("run/driver").join(LIBRARIES).join("libnvidia-ml.so.1")).unwrap();
    assert_eq!(library, Path::new("libnvidia-ml.so.595.91.07"));
    assert!(node.seen("run/driver/usr/bin/nvidia-smi").exists());
    assert_eq!(node.loaded().as_deref(), Some(VERSION));
    assert_eq!(fs::read_to_string(node.path("standin/module/nvidia/refcnt")).unwrap(), "0\n");
    // The mount is visible only on the node.
    assert!(!node.path("run/driver").exists());

    fs::write(node.path("standin/gpus.json"), r#"{"devices":[{"minor":5}]}"#).unwrap();
    until("a new GPU has a device node", || is_device(&node.seen("run/driver/dev/nvidia5")));

    driver.send(Signal::SIGTERM);
    assert!(driver.ended().success());
    assert!(!node.shows_root());
    assert_eq!(node.loaded(), None);
    assert!(!node.seen("run/nvidia-driver.pid").exists());
    assert_eq!(node.state().as_deref(), Some("\n"), "the state file is kept");
}

#[test]
fn the_majors_are_in_proc_devices_while_the_driver_is_loaded() {
    let Some(node) = Node::new() else { return };
    // A bind mount of a single file, as the harness makes it: replacing the file would not change the mounted one.
    let keeper = node.keeper.id().to_string();
    let (file, place) = (node.path("standin/proc-devices"), node.path("run/proc-devices"));
    let script = format!("touch {1} && mount --bind {0} {1}", file.display(), place.display());
    let mounted = Command::new("nsenter").args(["-t", &keeper, "-m", "sh", "-ec", &script]).status().unwrap();
    assert!(mounted.success());
    let seen = || fs::read_to_string(node.seen("run/proc-devices")).unwrap();

    let mut driver = node.driver();
    until("the root is visible", || node.shows_root());
    let majors: Vec<String> = seen().lines().filter(|line| line.contains("nvidia")).map(str::to_owned).collect();
    assert_eq!(majors, ["195 nvidia", "195 nvidia-modeset", "195 nvidiactl", "  7 nvidia-uvm", "508 nvidia-caps"]);
    driver.send(Signal::SIGTERM);
    assert!(driver.ended().success());
    assert_eq!(seen(), PROC_DEVICES);
}

#[test]
fn minors_0_and_1_of_nvidia_uvm_can_be_opened() {
    if !Uid::effective().is_root() || !fs::read_to_string("/proc/devices").unwrap().contains("  7 vcs\n") {
        eprintln!("skipped: device nodes need root, and opening these needs virtual consoles");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for minor in [0, 1] {
        let node = folder.path().join(minor.to_string());
        mknod(&node, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, makedev(UVM_MAJOR, minor)).unwrap();
        File::options().read(true).write(true).open(&node).unwrap();
    }
}

#[test]
fn only_one_driver_container_runs() {
    let Some(node) = Node::new() else { return };
    let first = node.driver();
    until("the root is visible", || node.shows_root());
    let mut second = node.driver();
    assert_eq!(second.ended().code(), Some(1));
    assert_eq!(node.termination_message(), "An instance of the NVIDIA driver is already running, aborting");
    assert_eq!((node.loaded().as_deref(), node.shows_root()), (Some(VERSION), true), "the first driver keeps running");
    // A killed process holds no lock.
    first.send(Signal::SIGKILL);
    drop(first);
    let _third = node.driver();
    until("the driver is loaded again", || node.loads() == 2);
}

#[test]
fn a_held_installation_begins_when_the_hold_ends() {
    let Some(node) = Node::new() else { return };
    node.steer(r#"{"mode":"hold"}"#);
    let mut driver = node.driver();
    driver.wait_for_log("held back");
    assert!(!node.shows_root());
    assert_eq!(node.loaded(), None);
    fs::remove_file(node.path(STEERING)).unwrap();
    until("the root is visible", || node.shows_root());
    driver.send(Signal::SIGTERM);
    assert!(driver.ended().success());
}

#[test]
fn a_crashed_driver_leaves_a_message_and_the_next_recovers() {
    let Some(node) = Node::new() else { return };
    let mut first = node.driver();
    until("the root is visible", || node.shows_root());
    node.steer(r#"{"mode":"crash","message":"no such kernel headers"}"#);
    assert_eq!(first.ended().code(), Some(1));
    assert_eq!(node.termination_message(), "no such kernel headers");
    assert!(node.shows_root(), "a crash does not clean up");

    node.steer(r#"{"mode":"ok"}"#);
    image(node.folder.path(), "second");
    fs::write(node.path("second/usr/lib/new"), "").unwrap();
    let second = node.driver_of("second", "current", None);
    until("the root is replaced", || node.seen("run/driver/usr/lib/new").exists());
    assert_eq!(node.layers(), 1, "the mount of the crashed driver is gone");
    second.send(Signal::SIGKILL);
    drop(second);

    // A failed start removes the driver and the root that it finds, if they are not in use.
    node.steer(r#"{"mode":"crash","message":"no such kernel headers"}"#);
    assert_eq!(node.driver().ended().code(), Some(1));
    assert_eq!((node.loaded(), node.shows_root()), (None, false));
    assert!(!node.seen("run/driver/usr").exists(), "no mount of the crashed drivers is left");
}

#[test]
fn a_driver_in_use_survives_sigterm_and_ends_once_it_is_idle() {
    let Some(node) = Node::new() else { return };
    let mut driver = node.driver();
    until("the root is visible", || node.shows_root());
    let user = node.user();
    driver.send(Signal::SIGTERM);
    driver.wait_for_log(IN_USE);
    assert!(driver.child.try_wait().unwrap().is_none(), "the driver runs until it is killed");
    assert_eq!((node.loaded().as_deref(), node.shows_root()), (Some(VERSION), true));

    // It does not retry: another SIGTERM is needed.
    drop(user);
    driver.send(Signal::SIGTERM);
    assert!(driver.ended().success());
    assert_eq!((node.loaded(), node.shows_root()), (None, false));
}

#[test]
fn the_libraries_are_removed_with_the_container() {
    let Some(node) = Node::new() else { return };
    assert!(!node.path("image").join(LIBRARIES).exists(), "the image itself has no installed libraries");
    let driver = node.driver();
    until("the root is visible", || node.shows_root());
    let library = node.seen("run/driver").join(LIBRARIES).join(format!("libnvidia-ml.so.{VERSION}"));
    assert_eq!(fs::read_to_string(&library).unwrap(), "image");
    driver.send(Signal::SIGKILL);
    drop(driver);
    assert!(library.exists(), "the file system of a killed container exists until it is removed");
    // The runtime removes the container's writable layer.
    fs::remove_dir_all(node.path("image").join(LIBRARIES)).unwrap();
    assert!(!library.exists());
    assert_eq!((node.layers(), node.shows_root()), (1, true), "the rest of the root stays mounted");
}

/// A start of a driver container after the previous one was killed.
struct Restart {
    /// The kind of both images.
    kind: &'static str,
    /// The digests of the first and the second start.
    digests: [Option<&'static str>; 2],
    /// Whether the driver is in use during the second start.
    used: bool,
    /// What the second start does.
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Loads,
    Keeps,
    Fails,
}

#[test]
fn only_an_equal_digest_keeps_a_used_driver_across_a_restart() {
    use Outcome::{Fails, Keeps, Loads};
    for (kind, first, second, used, outcome) in [
        ("current", Some("a"), Some("a"), true, Keeps),
        ("current", Some("a"), Some("a"), false, Keeps),
        ("current", Some("a"), Some("b"), true, Fails),
        ("current", Some("a"), Some("b"), false, Loads),
        ("current", None, None, true, Fails),
        ("current", Some(""), Some(""), false, Loads),
        ("old", Some("a"), Some("a"), true, Fails),
        ("old", Some("a"), Some("a"), false, Loads),
        ("precompiled", Some("a"), Some("a"), true, Fails),
        ("precompiled", Some("a"), Some("a"), false, Loads),
    ] {
        let Some(node) = Node::new() else { return };
        restart(&node, &Restart { kind, digests: [first, second], used, outcome });
    }
}

fn restart(node: &Node, Restart { kind, digests, used, outcome }: &Restart) {
    let case = format!("{kind} {digests:?}, used: {used}");
    let first = node.driver_of("image", kind, digests[0]);
    until("the root is visible", || node.shows_root());
    let recorded = (*kind == "current").then(|| format!("{}\n", digests[0].unwrap_or_default()));
    until(&case, || node.state() == recorded);
    first.send(Signal::SIGKILL);
    drop(first);
    let user = used.then(|| node.user());

    image(node.folder.path(), "second");
    let mut second = node.driver_of("second", kind, digests[1]);
    if *outcome == Outcome::Fails {
        assert_eq!(second.ended().code(), Some(1), "{case}");
        assert_eq!(node.termination_message(), IN_USE, "{case}");
        assert_eq!((node.loads(), node.layers()), (1, 1), "{case}");
        assert_eq!(node.loaded().as_deref(), Some(VERSION), "{case}");
        drop(user);
        second = node.driver_of("second", kind, digests[1]);
    }
    let library = node.seen("run/driver").join(LIBRARIES).join("libnvidia-ml.so.1");
    until(&case, || fs::read_to_string(&library).is_ok_and(|text| text == "second"));
    assert_eq!(node.loads(), if *outcome == Outcome::Keeps { 1 } else { 2 }, "{case}");
    assert_eq!(node.layers(), 1, "{case}");
    assert!(is_device(&node.seen("run/driver/dev/nvidia3")), "{case}");
    second.wait_for_log("Done, now waiting for signal");
    let recorded = (*kind == "current").then(|| format!("{}\n", digests[1].unwrap_or_default()));
    assert_eq!(node.state(), recorded, "{case}");
}

#[test]
fn another_version_is_replaced_once_nothing_uses_it() {
    let Some(node) = Node::new() else { return };
    let first = node.driver();
    until("the root is visible", || node.shows_root());
    first.send(Signal::SIGKILL);
    drop(first);
    fs::write(node.path("standin/module/nvidia/version"), "580.173.02\n").unwrap();
    let user = node.user();
    assert_eq!(node.driver().ended().code(), Some(1));
    assert_eq!(node.termination_message(), IN_USE);
    assert_eq!(node.loaded().as_deref(), Some("580.173.02"));

    drop(user);
    let _next = node.driver();
    until("the driver is replaced", || node.loaded().as_deref() == Some(VERSION));
}

#[test]
fn a_driver_with_the_wrong_version_recovers() {
    let Some(node) = Node::new() else { return };
    node.steer(r#"{"mode":"wrong-version","loads":"590.10.01"}"#);
    let _driver = node.driver();
    until("the root is visible", || node.shows_root());
    assert_eq!(node.loaded().as_deref(), Some("590.10.01"));
    fs::remove_file(node.path(STEERING)).unwrap();
    until("the right version is loaded", || node.loaded().as_deref() == Some(VERSION));
}
