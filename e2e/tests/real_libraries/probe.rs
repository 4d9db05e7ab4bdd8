//! The report of the probe on a host with a real driver's libraries.

use std::{
    fs,
    io::Write,
    os::unix::fs::{FileTypeExt, MetadataExt},
    process::{Command, Stdio},
};

use e2e::host::report;
use gpu_host::observe::driver::{HOST_ROOT, libraries};
use harness::debian::Driver;
use nix::sys::stat::makedev;
use serde_json::{Value, json};

use crate::support::{BRANCHES, GPU, Host, built, configure, host_with_gpu, library, real, unpack};

/// The error of NVML without a loaded module, as formatted by the probe's bindings.
const NOT_LOADED: &str = "NVIDIA driver is not loaded";

/// Returns the expected report of a host with only these drivers, with the fields of the module and of NVML.
fn expected(installed: &[&Driver], module: &Value, nvml: &Value) -> Value {
    let installed = installed.iter().map(|driver| {
        let mut known = json!({"root": "/", "version": driver.version});
        if module["loaded"].as_str() == Some(&driver.version) {
            // The library creates its own device nodes, but not those of unified memory.
            known["missingDevices"] = json!(["nvidia-uvm", "nvidia-uvm-tools"]);
        }
        known
    });
    let installed: Vec<Value> = installed.collect();
    let mut driver = json!({"inUse": false, "installed": installed});
    driver.as_object_mut().expect("an object").extend(module.as_object().expect("an object").clone());
    json!({
        "probeVersion": env!("CARGO_PKG_VERSION"),
        "bootID": "11111111-2222-3333-4444-555555555555",
        "os": {"id": "debian", "versionID": "12"},
        "gpus": [{"pciAddress": GPU, "deviceID": "102d", "pciClass": "030200", "health": {"state": "Unknown", "action": "None"}}],
        "driver": driver,
        "nvml": nvml,
        "seLinux": false,
    })
}

/// Returns the report without the time and the load id, which differ each time.
fn facts(host: &Host) -> Value {
    let mut report = report(host);
    for gpu in report["gpus"].as_array_mut().expect("a list") {
        gpu["health"].as_object_mut().expect("an object").remove("since");
    }
    report["driver"].as_object_mut().expect("an object").remove("loadID");
    report
}

#[test]
fn a_library_is_found_in_debians_folder_unpacked_and_configured() {
    for branch in BRANCHES {
        let driver = real(branch);
        for configured in [false, true] {
            let host = host_with_gpu();
            unpack(&host, &driver);
            if configured {
                configure(&host, &driver);
            }
            let found = libraries(&host.root(), HOST_ROOT).expect("read");
            let found: Vec<_> = found.iter().map(|found| (found.version.as_str(), found.path.to_str())).collect();
            assert_eq!(found, [(driver.version.as_str(), Some(&*library(&driver)))], "configured: {configured}");
        }
    }
}

#[test]
fn without_a_module_the_library_is_reported_and_not_loaded() {
    for branch in BRANCHES {
        let driver = real(branch);
        let host = host_with_gpu();
        unpack(&host, &driver);
        assert_eq!(facts(&host), expected(&[&driver], &json!({}), &json!({"state": "Absent"})));
        assert_eq!(
            fs::read_dir(host.path("dev")).expect("a folder").count(),
            0,
            "{branch}: the library was initialised"
        );
    }
}

#[test]
fn a_module_without_a_device_is_no_loaded_driver() {
    for branch in BRANCHES {
        let driver = real(branch);
        let host = host_with_gpu();
        unpack(&host, &driver);
        configure(&host, &driver);
        host.load(&driver.version);
        let failing = json!({"state": "Failing", "message": NOT_LOADED});
        assert_eq!(facts(&host), expected(&[&driver], &json!({"loaded": driver.version}), &failing));
        // The library creates its own device node, if its process has the permission.
        let node = fs::metadata(host.path("dev/nvidiactl")).expect("the library's own device node");
        assert!(node.file_type().is_char_device());
        assert_eq!((node.rdev(), node.mode() & 0o777), (makedev(195, 255), 0o666));
    }
}

#[test]
fn of_two_branches_the_library_of_the_loaded_module_is_used() {
    let (old, new) = (real("470"), real("550"));
    for (loaded, other) in [(&old, &new), (&new, &old)] {
        let host = host_with_gpu();
        unpack(&host, &old);
        unpack(&host, &new);
        host.load(&loaded.version);
        fs::write(host.path(&library(other)), "no library").expect("written");
        let failing = json!({"state": "Failing", "message": NOT_LOADED});
        assert_eq!(facts(&host), expected(&[&old, &new], &json!({"loaded": loaded.version}), &failing));
    }
    let host = host_with_gpu();
    unpack(&host, &old);
    unpack(&host, &new);
    host.load("535.309.01");
    let why = "the module of version 535.309.01 is loaded; no libnvidia-ml.so.535.309.01 is on the host";
    let absent = json!({"state": "Absent", "message": why});
    assert_eq!(facts(&host), expected(&[&old, &new], &json!({"loaded": "535.309.01"}), &absent));
}

#[test]
fn the_process_that_loads_a_library_survives_its_failure() {
    for branch in BRANCHES {
        let driver = real(branch);
        let host = host_with_gpu();
        unpack(&host, &driver);
        let mut child = Command::new(built("nvml-probe"));
        child.args(["nvml-child", "--parent", &std::process::id().to_string()]);
        child.arg("--host-root").arg(host.path("")).arg("--chroot").arg(host.path(""));
        child.args(["--library", &library(&driver)]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().expect("the child");
        child.stdin.take().expect("its input").write_all(b"[]\n[]\n").expect("written");
        let output = child.wait_with_output().expect("its output");
        assert!(output.status.success(), "{branch}: {}", output.status);
        let failure = format!("{{\"failed\":\"{NOT_LOADED}\"}}\n");
        assert_eq!(String::from_utf8_lossy(&output.stdout), failure.repeat(2), "{branch}");
    }
}
