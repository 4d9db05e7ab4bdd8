//! A host in a temporary directory, and the stand-in for NVML.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use gpu_host::root::HostRoot;
use tempfile::TempDir;

const BOOT_ID: &str = "11111111-2222-3333-4444-555555555555";

/// The stand-in for libnvidia-ml.so, built once.
fn standin() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // The running test is TARGET/debug/deps/NAME.
        let test = std::env::current_exe().unwrap();
        let target = test.ancestors().nth(3).unwrap();
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "standin-nvml", "--target-dir"])
            .arg(target)
            .status()
            .unwrap();
        assert!(built.success(), "the stand-in for NVML does not build");
        target.join("debug/libstandin_nvml.so")
    })
}

/// A host without GPUs and drivers, to which they are added.
pub struct Host {
    directory: TempDir,
}

impl Host {
    pub fn new() -> Self {
        Self::in_directory(tempfile::tempdir().unwrap())
    }

    /// Creates it in a directory of the caller's.
    pub fn in_directory(directory: TempDir) -> Self {
        let host = Self { directory };
        host.write("proc/sys/kernel/random/boot_id", BOOT_ID);
        host.write("etc/os-release", "ID=ubuntu\nVERSION_ID=\"22.04\"\n");
        fs::create_dir_all(host.path("sys/bus/pci/devices")).unwrap();
        host
    }

    pub fn root(&self) -> HostRoot {
        HostRoot::new(self.directory.path())
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path.trim_start_matches('/'))
    }

    /// Writes atomically, so that a reader sees the complete file.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    }

    /// Adds a GPU to the bus.
    pub fn gpu(&self, address: &str, device: &str) {
        for (name, value) in [("vendor", "0x10de"), ("device", device), ("class", "0x030200")] {
            self.write(&format!("sys/bus/pci/devices/{address}/{name}"), value);
        }
    }

    /// Loads the kernel module.
    pub fn load(&self, version: &str) {
        self.write("sys/module/nvidia/version", version);
        self.write("sys/module/nvidia/refcnt", "0");
    }

    /// Unloads the kernel module and loads it again.
    pub fn reload(&self, version: &str) {
        // Created beside the old one, so that the two cannot have the same inode.
        fs::rename(self.path("sys/module/nvidia"), self.path("sys/module/gone")).unwrap();
        self.load(version);
    }

    /// Installs the stand-in driver under `root`, serving these GPUs: address and uuid.
    pub fn install(&self, root: &str, version: &str, gpus: &[(&str, &str)]) {
        let library = self.library(root, version);
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        for library in [&library, &library.with_file_name(format!("libcuda.so.{version}"))] {
            fs::copy(standin(), library).unwrap();
            fs::set_permissions(library, Permissions::from_mode(0o755)).unwrap();
        }
        // The probe loads a library only if no other user can write to it, or to a folder above it.
        for path in library.ancestors().take_while(|path| *path != self.directory.path()) {
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        self.write(&format!("{root}/etc/standin/module/nvidia/version"), version);
        self.write(&format!("{root}/dev/nvidiactl"), "");
        self.write(&format!("{root}/etc/standin/lock/nvml.lock"), "");
        self.serve(root, gpus, false);
    }

    fn library(&self, root: &str, version: &str) -> PathBuf {
        self.path(&format!("{root}/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{version}"))
    }

    /// Removes a function that libraries of older drivers lack from the stand-in under `root`, by renaming it.
    pub fn hide(&self, root: &str, version: &str, function: &str) {
        let mut bytes = fs::read(self.library(root, version)).unwrap();
        let names: Vec<usize> = bytes
            .split(|byte| *byte == 0)
            .scan(0, |next, text| Some((std::mem::replace(next, *next + text.len() + 1), text)))
            .filter_map(|(at, text)| (text == function.as_bytes()).then_some(at))
            .collect();
        assert!(!names.is_empty(), "the stand-in has no {function}");
        for at in names {
            bytes[at] = b'_';
        }
        fs::write(self.library(root, version), bytes).unwrap();
    }

    /// Changes the responses of the stand-in under `root`, or makes it hang.
    pub fn serve(&self, root: &str, gpus: &[(&str, &str)], hang: bool) {
        self.serve_with(root, gpus, |machine| machine["hang"] = hang.into());
    }

    /// As [`Self::serve`], with any change of `gpus.json`.
    pub fn serve_with(&self, root: &str, gpus: &[(&str, &str)], change: impl FnOnce(&mut serde_json::Value)) {
        let devices: Vec<_> = gpus
            .iter()
            .enumerate()
            .map(|(minor, (address, uuid))| {
                serde_json::json!({
                    "pciAddress": address,
                    "pciDeviceId": "0x233010DE",
                    "name": "NVIDIA H100 80GB HBM3",
                    "uuid": uuid,
                    "memoryMiB": 81559,
                    "minor": minor,
                })
            })
            .collect();
        let mut machine = serde_json::json!({"cuda": "13.1", "devices": devices});
        change(&mut machine);
        self.write(&format!("{root}/etc/standin/gpus.json"), &machine.to_string());
    }

    /// Returns whether a process holds the driver under `root`.
    pub fn is_held(&self, root: &str) -> bool {
        let lock = File::open(self.path(&format!("{root}/etc/standin/lock/nvml.lock"))).unwrap();
        lock.try_lock().is_err()
    }
}
