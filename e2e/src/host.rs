//! Hosts for the probe: folders that it uses as its node's root.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use harness::{cargo::Build, paths::Paths};
use serde_json::Value;
use tempfile::TempDir;
use test_support::host::Host;

use super::api::Api;

/// Returns the path of a program or library of this workspace, built by `cargo build --workspace`, which
/// `cargo xtask test` runs first.
pub fn built(name: &str) -> PathBuf {
    let file = Build::Debug.file(&Paths::new(), name);
    assert!(file.is_file(), "{} does not exist: run `cargo build --workspace` first", file.display());
    file
}

/// Creates a temporary folder on a file system that supports device nodes, unlike some `/tmp`.
pub fn folder() -> TempDir {
    let base = Paths::new().base;
    fs::create_dir_all(&base).expect("a folder");
    TempDir::new_in(base).expect("a folder")
}

/// Creates a host with Debian, without a GPU and without a loaded module.
pub fn bare() -> Host {
    let host = Host::in_directory(folder());
    host.write("etc/os-release", "ID=debian\nVERSION_ID=\"12\"\n");
    fs::create_dir_all(host.path("dev")).expect("a folder");
    host
}

/// Runs the probe on a host as its pod does, and returns its report.
pub fn report(host: &Host) -> Value {
    let api = Api::new();
    host.write("kubeconfig", &api.kubeconfig());
    let mut probe = Command::new(built("nvml-probe"));
    probe
        .args(["run", "--node-name", "n1", "--kernel-log", "/nowhere", "--host-root"])
        .arg(host.path(""))
        .env("KUBECONFIG", host.path("kubeconfig"))
        .env_remove("KUBERNETES_SERVICE_HOST")
        .stderr(Stdio::null());
    let _probe = Process(probe.spawn().expect("the probe"));
    api.report()
}

/// A process that is killed at the end of the test.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if the process has already ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
