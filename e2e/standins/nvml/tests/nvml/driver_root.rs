//! A driver root in a temporary folder.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use nvml_wrapper::{Nvml, error::NvmlError};
use standin_nvml::shared_object;

/// A driver root, and the operations of tests on it.
pub struct DriverRoot {
    folder: tempfile::TempDir,
}

pub const VERSION: &str = "595.91.07";

impl DriverRoot {
    /// Creates a root with one GPU per UUID, the loaded driver [`VERSION`], and a control device that can be opened.
    pub fn with_gpus(uuids: &[&str]) -> Self {
        let root = Self { folder: tempfile::tempdir().unwrap() };
        for folder in ["dev", "etc/standin/lock", "etc/standin/module/nvidia/holders", "usr/lib/x86_64-linux-gnu"] {
            fs::create_dir_all(root.path(folder)).unwrap();
        }
        root.write("dev/nvidiactl", "");
        root.load(VERSION);
        root.serve(uuids, "");
        root
    }

    /// Replaces `gpus.json`. `extra` has the fields before the devices.
    pub fn serve(&self, uuids: &[&str], extra: &str) {
        let device = |(minor, uuid): (usize, &&str)| {
            format!(
                r#"{{"pciAddress":"0000:{minor:02x}:00.0","pciDeviceId":"0x233010DE","name":"NVIDIA H100 80GB HBM3",
                "uuid":"{uuid}","memoryMiB":81559,"minor":{minor}}}"#
            )
        };
        let devices: Vec<String> = uuids.iter().enumerate().map(device).collect();
        self.write("etc/standin/gpus.json", &format!(r#"{{"cuda":"13.1",{extra}"devices":[{}]}}"#, devices.join(",")));
    }

    /// Replaces `gpus.json` with one that has a single GPU. `fields` are further fields of the GPU.
    pub fn serve_one(&self, fields: &str) {
        let device = format!(
            r#"{{"devices":[{{"pciAddress":"0000:00:00.0","pciDeviceId":"0x233010DE","name":"NVIDIA H100 80GB HBM3",
            "uuid":"GPU-a","memoryMiB":81559,"minor":0,{fields}}}]}}"#
        );
        self.write("etc/standin/gpus.json", &device);
    }

    pub fn load(&self, version: &str) {
        self.write("etc/standin/module/nvidia/version", &format!("{version}\n"));
    }

    pub fn write(&self, path: &str, content: &str) {
        // As in the test harness, readers see either the old or the new file.
        let new = self.path(&format!("{path}.new"));
        fs::write(&new, content).unwrap();
        fs::rename(new, self.path(path)).unwrap();
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }
}

/// Installs the library in the root as a driver's package does, and returns the path that programs open.
pub fn install(root: &DriverRoot) -> PathBuf {
    let folder = root.path("usr/lib/x86_64-linux-gnu");
    let file = format!("libnvidia-ml.so.{VERSION}");
    fs::copy(shared_object().expect("the shared object is built with this test"), folder.join(&file)).unwrap();
    symlink(&file, folder.join("libnvidia-ml.so.1")).unwrap();
    folder.join("libnvidia-ml.so.1")
}

/// Replaces `gpus.json`. `models` has PCI device ids and numbers of GPUs, `fields` further fields of each GPU.
pub fn serve(root: &DriverRoot, models: &[(u16, usize)], fields: &str) {
    let ids = models.iter().flat_map(|(id, count)| std::iter::repeat_n(id, *count));
    let device = |(minor, id): (usize, &u16)| {
        format!(
            r#"{{"pciAddress":"0000:{minor:02x}:00.0","pciDeviceId":"0x{id:04X}10DE","name":"GPU","uuid":"GPU-{minor}-a",
            "memoryMiB":81920,"minor":{minor}{fields}}}"#
        )
    };
    let devices: Vec<String> = ids.enumerate().map(device).collect();
    root.write("etc/standin/gpus.json", &format!(r#"{{"devices":[{}]}}"#, devices.join(",")));
}

pub fn init(library: &Path) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(library.as_os_str()).init()
}
