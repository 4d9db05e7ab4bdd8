//! Hosts for the probe: folders that it uses as its node's root.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use harness::{cargo::Build, paths::Paths};
use serde_json::Value;
use tempfile::TempDir;

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

/// A host.
pub struct Host(TempDir);

impl Host {
    /// Creates a host without a GPU and without a loaded module.
    pub fn bare() -> Self {
        let host = Self(folder());
        host.write("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555");
        host.write("etc/os-release", "ID=debian\nVERSION_ID=\"12\"\n");
        for empty in ["dev", "sys/bus/pci/devices"] {
            fs::create_dir_all(host.path(empty)).expect("a folder");
        }
        host
    }

    /// Returns the folder.
    pub fn root(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of a file of the host.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    /// Writes a file of the host.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("written");
    }

    /// Adds a loaded module to sysfs.
    pub fn load(&self, version: &str) {
        self.write("sys/module/nvidia/version", version);
        self.write("sys/module/nvidia/refcnt", "0");
    }

    /// Runs the probe as its pod does, and returns its report.
    pub fn report(&self) -> Value {
        let api = Api::new();
        self.write("kubeconfig", &api.kubeconfig());
        let mut probe = Command::new(built("nvml-probe"));
        probe
            .args(["run", "--node-name", "n1", "--kernel-log", "/nowhere", "--host-root"])
            .arg(self.root())
            .env("KUBECONFIG", self.path("kubeconfig"))
            .env_remove("KUBERNETES_SERVICE_HOST")
            .stderr(Stdio::null());
        let _probe = Process(probe.spawn().expect("the probe"));
        api.report()
    }
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
