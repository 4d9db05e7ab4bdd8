//! NVIDIA's `nvidia-smi`: its output without a driver, and its calls of the stand-in for NVML.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Output,
};

use harness::debian::Driver;

use crate::support::{BRANCHES, built, confined, folder, library, real};

/// The output if the library is found and no driver is loaded.
pub const NO_DRIVER: &str = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the \
                         latest NVIDIA driver is installed and running.";
const NO_LIBRARY: &str = "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.";
const NO_TABLE: &str = "Mismatch in versions between nvidia-smi and NVML.";

/// Returns the path of the package's program, in the folder of the branch.
fn program(driver: &Driver) -> PathBuf {
    let branch = PathBuf::from(library(driver)).parent().and_then(Path::file_name).map(OsStr::to_owned);
    driver.root.join("usr/lib/nvidia").join(branch.expect("a folder")).join("nvidia-smi")
}

/// Runs the program with the libraries in a folder.
fn run(driver: &Driver, libraries: &Path, args: &[&str]) -> Output {
    let mut command = confined(&program(driver));
    command.args(args).env("LD_LIBRARY_PATH", libraries).env("LD_DEBUG", "symbols");
    command.output().expect("unshare")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns NVML's functions that the program looked up with the dynamic linker, in order.
fn looked_up(output: &Output) -> Vec<String> {
    let mut looked_up: Vec<String> = Vec::new();
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        let symbol = line.split_once("symbol=").and_then(|(_, rest)| rest.split(';').next());
        if let Some(symbol) =
            symbol.filter(|symbol| symbol.starts_with("nvml") && !looked_up.iter().any(|it| it == symbol))
        {
            looked_up.push(symbol.to_owned());
        }
    }
    looked_up
}

#[test]
fn nvidia_smi_tells_a_missing_library_from_a_missing_driver() {
    for branch in BRANCHES {
        let driver = real(branch);
        let own = driver.root.join(Path::new(&library(&driver)).strip_prefix("/").expect("absolute"));
        for args in [&[][..], &["-L"], &["-c", "EXCLUSIVE_PROCESS"]] {
            let output = run(&driver, own.parent().expect("a folder"), args);
            assert_eq!((stdout(&output).trim(), output.status.code()), (NO_DRIVER, Some(9)), "{branch} {args:?}");
            let output = run(&driver, Path::new("/nowhere"), args);
            assert!(stdout(&output).starts_with(NO_LIBRARY), "{branch} {args:?}: {}", stdout(&output));
            assert_eq!(output.status.code(), Some(12), "{branch} {args:?}");
        }
        let help = run(&driver, Path::new("/nowhere"), &["--help"]);
        let begin = format!("NVIDIA System Management Interface -- v{}\n", driver.version);
        assert!(stdout(&help).starts_with(&begin), "{}", stdout(&help));
    }
}

#[test]
fn nvidia_smi_fails_because_the_stand_in_has_no_export_table() {
    for branch in BRANCHES {
        let driver = real(branch);
        let root = folder();
        let at = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            path
        };
        let stand_in = at(&format!("usr/lib64/libnvidia-ml.so.{}", driver.version));
        fs::copy(built("libstandin_nvml.so"), &stand_in).expect("copied");
        symlink(&stand_in, at("usr/lib64/libnvidia-ml.so.1")).expect("a link");
        fs::write(at("etc/standin/module/nvidia/version"), &driver.version).expect("written");
        fs::write(at("etc/standin/gpus.json"), "{}").expect("written");
        for empty in ["etc/standin/lock/nvml.lock", "dev/nvidiactl"] {
            fs::write(at(empty), "").expect("written");
        }
        for args in [&[][..], &["-L"], &["-c", "EXCLUSIVE_PROCESS"]] {
            let output = run(&driver, &root.path().join("usr/lib64"), args);
            assert!(stdout(&output).starts_with(NO_TABLE), "{branch} {args:?}: {}", stdout(&output));
            assert_eq!(output.status.code(), Some(255), "{branch} {args:?}");
            assert_eq!(
                looked_up(&output),
                ["nvmlInitWithFlags", "nvmlInternalGetExportTable", "nvmlShutdown"],
                "{branch}"
            );
        }
    }
}
