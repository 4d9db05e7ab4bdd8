//! The stand-in for nvidia-smi, with the stand-in NVML library in a driver root.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests are tests too

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use standin_nvml::shared_object;

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A driver root with these GPUs, given as JSON.
struct Root(tempfile::TempDir);

impl Root {
    fn with_gpus(gpus: &str) -> Self {
        let root = Self(tempfile::tempdir().unwrap());
        for folder in ["dev", "etc/standin/lock", "etc/standin/module/nvidia", LIBRARIES] {
            fs::create_dir_all(root.path(folder)).unwrap();
        }
        for (file, text) in [
            ("dev/nvidiactl", ""),
            ("etc/standin/lock/nvml.lock", ""),
            ("etc/standin/module/nvidia/version", "595.91.07"),
            ("etc/standin/gpus.json", &format!(r#"{{"cuda":"13.1","devices":[{gpus}]}}"#)),
        ] {
            fs::write(root.path(file), text).unwrap();
        }
        fs::copy(
            shared_object().expect("the shared object is built with this test"),
            root.path(LIBRARIES).join("libnvidia-ml.so.1"),
        )
        .unwrap();
        root
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn is_free(&self) -> bool {
        File::open(self.path("etc/standin/lock/nvml.lock")).unwrap().try_lock().is_ok()
    }

    fn smi(&self) -> Command {
        let mut smi = Command::new(env!("CARGO_BIN_EXE_nvidia-smi"));
        smi.env("LD_LIBRARY_PATH", self.path(LIBRARIES)).env("TERMINATION_LOG", self.path("termination-log"));
        smi
    }
}

#[test]
fn a_loop_keeps_the_driver_in_use() {
    let root = Root::with_gpus("");
    let once = root.smi().output().unwrap();
    assert!(String::from_utf8(once.stdout).unwrap().starts_with("Driver Version: 595.91.07  CUDA Version: 13.1"));
    assert!(root.is_free());

    let mut looping = root.smi().arg("--loop=1").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(looping.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = lines.next().expect("another table").unwrap();
        assert!(line.starts_with("Driver Version:"), "{line}");
    }
    assert!(!root.is_free());
    looping.kill().unwrap();
    looping.wait().unwrap();
    assert!(root.is_free());
}

#[test]
fn the_compute_mode_is_set_as_nvidias_mps_daemon_sets_it() {
    let gpu = |minor: u8| {
        format!(
            r#"{{"pciAddress":"0000:0{minor}:00.0","pciDeviceId":"0x1EB810DE","name":"Tesla T4","uuid":"GPU-{minor}",
            "memoryMiB":15360,"minor":{minor}}}"#
        )
    };
    let root = Root::with_gpus(&[gpu(0), gpu(1)].join(","));
    let set = |arguments: &[&str]| {
        let done = root.smi().args(arguments).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        fs::read_to_string(root.path("etc/standin/modes.json")).unwrap()
    };
    let modes = set(&["-i", "GPU-1", "-c", "EXCLUSIVE_PROCESS"]);
    assert_eq!(modes, r#"{"0000:01:00.0":{"compute":3}}"#);
    let modes = set(&["-c", "DEFAULT"]);
    assert_eq!(modes.matches(r#""compute":0"#).count(), 2, "{modes}");
    assert!(!root.smi().args(["-c", "SOMETHING"]).status().unwrap().success());
}
