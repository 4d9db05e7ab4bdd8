//! The gates, as the pods run them.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::PathBuf,
    process::{ChildStderr, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, Uid},
};
use test_support::host::Host;

use crate::{PROBE, process::Process};

#[test]
fn a_guard_becomes_its_program_and_writes_why_it_waits() {
    let host = Host::new();
    host.load("580.173.02");
    host.write("sys/module/nvidia/refcnt", "1");
    let (waits, log) = (host.path("run/nvidia/driver-waits"), host.path("log"));
    fs::create_dir_all(waits.parent().unwrap()).unwrap();
    let mut guard = Command::new(PROBE);
    guard.args(["guard", "--interval", "10ms", "--version", "580.173.02", "--digest", "abc", "--state-file"]);
    guard.arg(host.path("run/nvidia/nvidia-driver.state")).arg("--waits-file").arg(&waits);
    guard.arg("--termination-log").arg(&log).arg("--host-root").arg(host.root().as_path());
    guard.args(["--", "/bin/sh", "-c", "echo started; exit 7"]).stderr(Stdio::piped()).stdout(Stdio::piped());
    let mut guard = guard.spawn().unwrap();
    let mut said = BufReader::new(guard.stderr.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().contains("DriverInUse"));
    host.write("sys/module/nvidia/refcnt", "0");
    let output = guard.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(7), &b"started\n"[..]));
    assert!(!waits.exists(), "the guard no longer waits");
    assert!(!log.exists(), "the termination log belongs to the program");
}

/// Starts and stops driver containers on a host whose `/run` is `host`.
const STARTS: &str = r#"
    mkdir host run
    mount -t tmpfs host host
    mount --make-shared host
    mkdir -p host/nvidia/driver host/nvidia/mps run/nvidia
    mount -t tmpfs shm host/nvidia/mps
    touch host/nvidia/mps/shm

    # Shares /run/nvidia with the host, and does not have the rest of /run.
    cat > container <<'SCRIPT'
        mount --rbind host/nvidia run/nvidia
        mount --make-rprivate host
        umount --lazy host
        exec "$@"
SCRIPT
    container() { unshare --mount --propagation unchanged sh -e container "$@"; }
    guarded() { container "$0" guard --host-root "$PWD/none" --unmount "$PWD/run/nvidia/driver" -- "$@"; }
    show() { guarded mount --rbind / "$PWD/run/nvidia/driver" && test -e host/nvidia/driver/usr; }
    only_the_root_is_unmounted() { test ! -e host/nvidia/driver/usr && test -e host/nvidia/mps/shm; }

    show
    container umount --lazy --recursive run/nvidia/driver
    only_the_root_is_unmounted
    show
    guarded true
    only_the_root_is_unmounted"#;

#[test]
fn unmounting_a_driver_containers_root_leaves_the_hosts_mounts() {
    if !Uid::effective().is_root() {
        eprintln!("skipped: mounting needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let starts = ["--mount", "--propagation", "private", "sh", "-exc", STARTS, PROBE];
    let ended = Command::new("unshare").args(starts).current_dir(&folder).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// A gate as a process, and its output.
struct Running {
    process: Process,
    said: std::io::Lines<BufReader<ChildStderr>>,
    log: PathBuf,
}

impl Running {
    fn start(host: &Host, arguments: &[&str]) -> Self {
        let log = host.path("termination-log");
        let mut process = Command::new(PROBE)
            .args(arguments)
            .arg("--host-root")
            .arg(host.root().as_path())
            .args(["--interval", "10ms", "--termination-log"])
            .arg(&log)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(process.stderr.take().unwrap()).lines();
        Self { process: Process(process), said, log }
    }

    fn says(&mut self, expected: &str) {
        let line = self.said.next().unwrap().unwrap();
        assert!(line.contains(expected), "{line:?} does not contain {expected:?}");
    }

    fn code(mut self) -> (Option<i32>, String) {
        let status = self.process.0.wait().unwrap();
        assert_eq!(status.signal(), None);
        (status.code(), fs::read_to_string(self.log).unwrap())
    }

    fn terminate(&self) {
        kill(Pid::from_raw(i32::try_from(self.process.0.id()).unwrap()), Signal::SIGTERM).unwrap();
    }
}

#[test]
fn waiting_for_a_driver_logs_each_change_once() {
    let host = Host::new();
    let mut gate = Running::start(&host, &["wait", "driver", "--version", "580.173.02"]);
    gate.says("no NVIDIA kernel module");
    host.write("sys/module/nvidia/version", "580.173.02");
    gate.says("libnvidia-ml.so.580.173.02");
    host.write("run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.173.02", "");
    gate.says("is loaded and its libraries are under");
    let (code, log) = gate.code();
    assert_eq!(code, Some(0));
    assert!(log.contains("580.173.02 is loaded"), "{log}");
}

#[test]
fn waiting_for_the_toolkit_ends_when_it_is_installed() {
    let host = Host::new();
    let mut gate = Running::start(&host, &["wait", "toolkit", "--install-dir", "/opt/toolkit"]);
    gate.says("/opt/toolkit/nvidia-cdi-hook");
    let hook = host.path("hook");
    fs::write(&hook, "").unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(host.path("opt/toolkit")).unwrap();
    fs::rename(hook, host.path("opt/toolkit/nvidia-cdi-hook")).unwrap();
    gate.says("is installed");
    assert_eq!(gate.code().0, Some(0));
}

#[test]
fn a_gate_that_is_terminated_before_it_opens_fails() {
    let host = Host::new();
    host.load("580.173.02");
    host.write("sys/module/nvidia/refcnt", "3");
    let mut gate = Running::start(&host, &["guard", "--version", "595.91.07"]);
    gate.says("DriverInUse");
    gate.terminate();
    let (code, log) = gate.code();
    assert_eq!(code, Some(143));
    assert!(log.starts_with("DriverInUse"), "{log}");
}

#[test]
fn hold_exits_0_when_terminated() {
    let mut hold = Process(Command::new(PROBE).arg("hold").spawn().unwrap());
    hold.listens();
    kill(Pid::from_raw(i32::try_from(hold.0.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(hold.0.wait().unwrap().code(), Some(0));
}
