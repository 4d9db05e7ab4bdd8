//! Which state of a host opens which gate.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use node_tools::{
    gates::wait::{Gate, GateStatus, RuntimeRequirement, Takeover},
    runtime::{
        config_files::digest,
        daemon::{LoadedConfig, ProcessIdentity},
    },
};
use test_support::host::Host;

const ROOT: &str = "/run/nvidia/driver";

fn driver(version: Option<&str>) -> Gate {
    Gate::Driver { root: ROOT.to_owned(), version: version.map(str::to_owned), pid_file: None }
}

fn toolkit() -> Gate {
    toolkit_with(None, None)
}

fn toolkit_with(pid_file: Option<&str>, configured: Option<RuntimeRequirement>) -> Gate {
    let install_dir = PathBuf::from("/usr/local/nvidia/toolkit");
    Gate::Toolkit { install_dir, pid_file: pid_file.map(PathBuf::from), configured }
}

/// The guard of a container with the digest `abc`.
fn guard(host: &Host, version: &str) -> Gate {
    let takeover = Takeover::Digest { file: host.path("run/nvidia/nvidia-driver.state"), digest: "abc".to_owned() };
    Gate::Guard { version: Some(version.to_owned()), takeover }
}

fn waits_for(gate: &Gate, host: &Host, expected: &[&str]) {
    let GateStatus::Waiting(text) = gate.check(&host.root()) else { panic!("{gate:?} is open") };
    for part in expected {
        assert!(text.contains(part), "{text:?} does not contain {part}");
    }
}

fn is_open(gate: &Gate, host: &Host) {
    let answer = gate.check(&host.root());
    assert!(matches!(answer, GateStatus::Open(_)), "{answer:?}");
}

#[test]
fn the_mps_gate_opens_while_the_daemons_run() {
    let host = Host::new();
    let gate = Gate::Mps { root: PathBuf::from("/run/nvidia/mps") };
    waits_for(&gate, &host, &["MPS", "/run/nvidia/mps/.ready"]);
    host.write("run/nvidia/mps/.ready", "");
    is_open(&gate, &host);
}

#[test]
fn the_driver_gate_opens_with_the_wanted_module_and_its_library() {
    let host = Host::new();
    waits_for(&driver(Some("580.173.02")), &host, &["580.173.02", "no NVIDIA kernel module"]);
    host.load("535.309.01");
    waits_for(&driver(Some("580.173.02")), &host, &["580.173.02", "535.309.01 is loaded"]);
    waits_for(&driver(None), &host, &["libnvidia-ml.so.535.309.01"]);
    host.load("580.173.02");
    waits_for(&driver(Some("580.173.02")), &host, &["libnvidia-ml.so.580.173.02", ROOT]);
    // Neither a library of another version nor the host's library will be used.
    host.write("run/nvidia/driver/usr/lib64/libnvidia-ml.so.535.309.01", "");
    host.write("usr/lib64/libnvidia-ml.so.580.173.02", "");
    waits_for(&driver(Some("580.173.02")), &host, &["libnvidia-ml.so.580.173.02"]);
    host.write("run/nvidia/driver/usr/lib64/libnvidia-ml.so.580.173.02", "");
    // The version may be a branch, or unknown.
    for wanted in [Some("580.173.02"), Some("580"), None] {
        is_open(&driver(wanted), &host);
    }
    for other in ["58", "58.0", "580.173", "595"] {
        waits_for(&driver(Some(other)), &host, &["580.173.02 is loaded"]);
    }
}

#[test]
fn the_gate_of_an_nri_plugin_opens_while_its_installer_runs() {
    let host = Host::new();
    let gate = toolkit_with(Some("/run/nvidia/toolkit/toolkit.pid"), None);
    executable(&host, "usr/local/nvidia/toolkit/nvidia-cdi-hook");
    waits_for(&gate, &host, &["its installer is not running", "toolkit.pid"]);
    host.write("run/nvidia/toolkit/toolkit.pid", "7\n");
    is_open(&gate, &host);
}

fn executable(host: &Host, path: &str) {
    host.write(path, "");
    let path = host.root().resolve(PathBuf::from("/").join(path)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_gate_of_a_runtime_opens_when_it_has_loaded_its_config() {
    let host = Host::new();
    let files = ["/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"].map(PathBuf::from);
    let loaded = PathBuf::from("/run/gpu-operator/runtime");
    let gate = toolkit_with(None, Some(RuntimeRequirement { files: files.to_vec(), loaded }));
    executable(&host, "usr/local/nvidia/toolkit/nvidia-cdi-hook");
    waits_for(&gate, &host, &["NVIDIA's runtime is not in"]);
    let text = "BinaryName = \"/usr/local/nvidia/toolkit/nvidia-container-runtime\"\n";
    host.write("etc/containerd/conf.d/99-nvidia.toml", text);
    waits_for(&gate, &host, &["has not loaded its configuration yet"]);
    // The files in the order of their names, as in the recorded digest.
    let texts = [(files[1].as_path(), &Some(text.to_owned())), (files[0].as_path(), &None)];
    let record = LoadedConfig { process: ProcessIdentity { pid: 7, start: 1 }, digest: digest(texts) };
    host.write("run/gpu-operator/runtime/loaded.json", &serde_json::to_string(&record).unwrap());
    is_open(&gate, &host);
    host.write("etc/containerd/config.toml", "version = 2\n");
    waits_for(&gate, &host, &["has not loaded its configuration yet"]);
}

#[test]
fn the_toolkit_gate_opens_when_the_hook_is_executable() {
    let host = Host::new();
    let hook = "usr/local/nvidia/toolkit/nvidia-cdi-hook";
    waits_for(&toolkit(), &host, &["/usr/local/nvidia/toolkit/nvidia-cdi-hook"]);
    host.write(hook, "");
    fs::set_permissions(host.path(hook), fs::Permissions::from_mode(0o644)).unwrap();
    waits_for(&toolkit(), &host, &["not an executable file"]);
    fs::set_permissions(host.path(hook), fs::Permissions::from_mode(0o755)).unwrap();
    is_open(&toolkit(), &host);
}

#[test]
fn the_guard_waits_for_a_driver_in_use() {
    let host = Host::new();
    let (same, other) = (guard(&host, "580.173.02"), guard(&host, "595.91.07"));
    is_open(&other, &host);
    host.load("580.173.02");
    is_open(&other, &host);
    host.write("sys/module/nvidia/refcnt", "1");
    waits_for(&other, &host, &["DriverInUse", "580.173.02", "595.91.07 is wanted", "reboot"]);
    // An image without support for the digest leaves no file, or one with an empty line; another configuration leaves
    // another digest.
    for left in [None, Some("\n"), Some("abcd\n"), Some("ab")] {
        if let Some(left) = left {
            host.write("run/nvidia/nvidia-driver.state", left);
        }
        waits_for(&same, &host, &["DriverInUse", "would reload it"]);
    }
    host.write("run/nvidia/nvidia-driver.state", "abc\n");
    is_open(&same, &host);
    waits_for(&other, &host, &["DriverInUse"]);
    host.write("sys/module/nvidia/refcnt", "0");
    is_open(&other, &host);
}

#[test]
fn a_root_counts_only_with_a_live_container_and_device_nodes() {
    let host = Host::new();
    let pid_file = "run/nvidia/nvidia-driver.pid";
    let gate = Gate::Driver { root: ROOT.to_owned(), version: None, pid_file: Some(format!("/{pid_file}").into()) };
    host.load("580.173.02");
    host.write("run/nvidia/driver/usr/lib64/libnvidia-ml.so.580.173.02", "");
    // The gate does not require the lock file, which some images lack, but it requires the device nodes.
    waits_for(&gate, &host, &["/run/nvidia/driver/dev lacks nvidiactl, nvidia-uvm, nvidia-uvm-tools"]);
    host.write(pid_file, "1");
    waits_for(&gate, &host, &["no running container locks /run/nvidia/nvidia-driver.pid"]);
    let container = fs::File::open(host.path(pid_file)).unwrap();
    container.lock().unwrap();
    waits_for(&gate, &host, &["nvidia-uvm"]);
    fs::create_dir_all(host.path("run/nvidia/driver/dev")).unwrap();
    for node in ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"] {
        // The host's own device replaces one that the test could not create.
        std::os::unix::fs::symlink("/dev/null", host.path(&format!("run/nvidia/driver/dev/{node}"))).unwrap();
    }
    let null = host.path("dev/null");
    fs::create_dir_all(null.parent().unwrap()).unwrap();
    if nix::sys::stat::mknod(&null, nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::empty(), 259).is_ok() {
        is_open(&gate, &host);
    }
    container.unlock().unwrap();
    waits_for(&gate, &host, &["no running container"]);
}

#[test]
fn a_driver_in_use_passes_by_its_version_or_its_library() {
    let host = Host::new();
    // An installer that keeps a loaded module.
    let guard = |version: Option<&str>, install_dir: Option<&str>| Gate::Guard {
        version: version.map(Into::into),
        takeover: Takeover::Loaded { install_dir: install_dir.map(Into::into) },
    };
    let install_dir = Some("/home/kubernetes/bin/nvidia");
    is_open(&guard(None, None), &host);
    host.load("580.173.02");
    host.write("sys/module/nvidia/refcnt", "1");
    is_open(&guard(Some("580.173.02"), None), &host);
    // A library of another version, or in another folder, proves nothing.
    host.write("home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.535.309.01", "");
    host.write("usr/lib64/libnvidia-ml.so.580.173.02", "");
    for install_dir in [None, install_dir] {
        waits_for(&guard(None, install_dir), &host, &["DriverInUse", "not known in advance"]);
    }
    host.write("home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.580.173.02", "");
    is_open(&guard(None, install_dir), &host);
    for install_dir in [None, install_dir] {
        waits_for(&guard(Some("595.91.07"), install_dir), &host, &["DriverInUse", "595.91.07 is wanted"]);
    }
}
