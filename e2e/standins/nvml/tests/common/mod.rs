//! A driver root in a temporary folder.

use std::{fs, path::PathBuf};

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
