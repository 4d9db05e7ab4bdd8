//! The stand-in of nvidia-smi, above the stand-in NVML library in a driver root.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests are tests too

use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

// Named so that cargo builds its shared object before this test.
use standin_nvml as _;

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Cargo puts the shared object beside the tests that depend on its package.
fn built_library() -> PathBuf {
    let test = env::current_exe().unwrap();
    let mut places = test.ancestors().skip(1).take(2).map(|folder| folder.join("libstandin_nvml.so"));
    places.find(|file| file.exists()).expect("the shared object is built with this test")
}

#[test]
fn a_loop_keeps_the_driver_in_use() {
    let root = tempfile::tempdir().unwrap();
    let path = |path: &str| root.path().join(path);
    for folder in ["dev", "etc/standin/lock", "etc/standin/module/nvidia", LIBRARIES] {
        fs::create_dir_all(path(folder)).unwrap();
    }
    for (file, text) in [
        ("dev/nvidiactl", ""),
        ("etc/standin/lock/nvml.lock", ""),
        ("etc/standin/module/nvidia/version", "595.91.07"),
        ("etc/standin/gpus.json", r#"{"cuda":"13.1","devices":[]}"#),
    ] {
        fs::write(path(file), text).unwrap();
    }
    fs::copy(built_library(), path(LIBRARIES).join("libnvidia-ml.so.1")).unwrap();
    let is_free = || File::open(path("etc/standin/lock/nvml.lock")).unwrap().try_lock().is_ok();

    let mut smi = Command::new(env!("CARGO_BIN_EXE_nvidia-smi"));
    smi.env("LD_LIBRARY_PATH", path(LIBRARIES)).env("TERMINATION_LOG", path("termination-log"));
    let once = smi.output().unwrap();
    assert!(String::from_utf8(once.stdout).unwrap().starts_with("Driver Version: 595.91.07  CUDA Version: 13.1"));
    assert!(is_free());

    let mut looping = smi.arg("--loop=1").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(looping.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = lines.next().expect("it goes on").unwrap();
        assert!(line.starts_with("Driver Version:"), "{line}");
    }
    assert!(!is_free());
    looping.kill().unwrap();
    looping.wait().unwrap();
    assert!(is_free());
}
