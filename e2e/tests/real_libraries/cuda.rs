//! CUDA's real library in the probe's child, on a host with a GPU on the bus and without a driver.

use std::{fs, process::Command};

use crate::{
    inject::Installed,
    support::{BRANCHES_WITH_MPS, GPU, Host, built, folder, real},
};

#[test]
fn cuda_finds_no_device_and_creates_none() {
    for branch in BRANCHES_WITH_MPS {
        let driver = real(branch);
        let host = Host::in_directory(folder());
        host.gpu(GPU, "0x102d");
        host.load(&driver.version);
        // Only with this file does the library look for device nodes, and creates those that are missing.
        host.write("sys/module/nvidia/initstate", "live");
        Installed::copy(&driver, &host.path(""));
        fs::create_dir_all(host.path("dev")).expect("a folder");
        let mut child = Command::new(built("nvml-probe"));
        child.args(["cuda-child", "--parent", &std::process::id().to_string()]);
        child.arg("--host-root").arg(host.path("")).arg("--chroot").arg(host.path(""));
        let library = format!("/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.{}", driver.version);
        let output = child.args(["--library", &library]).env_clear().output().expect("the child");
        let expected = "{\"failed\":{\"code\":100,\"name\":\"CUDA_ERROR_NO_DEVICE\"}}\n";
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{branch}: {output:?}");
        let created: Vec<_> = fs::read_dir(host.path("dev")).expect("a folder").flatten().collect();
        assert!(created.is_empty(), "{branch}: {created:?}");
    }
}
