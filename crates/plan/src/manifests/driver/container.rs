//! NVIDIA's driver container, which loads the kernel modules and binds its root into `/run/nvidia/driver`.

use gpu_operator_crd::report::{CONTAINER_ROOT, WAITS_FILE};
use k8s_openapi::api::core::v1::{Container, SecurityContext};

use crate::{
    container_names::GUARD,
    manifests::{
        driver::{device_nodes, host_files, nouveau},
        gates::DRIVER_PID_FILE,
        pod::{HostNamespaces, Mode, PodInput, PodParts, env, host_path, mount, operand_container, own_container},
        unpacked,
    },
};

/// Unloading waits for the driver's own services to end.
const GRACE_SECONDS: i64 = 60;

/// The file in which it keeps the digest of what it has loaded.
const STATE_FILE: &str = "/run/nvidia/nvidia-driver.state";
/// The driver's pod.
#[must_use]
pub fn pod(input: &PodInput<'_>, version: &str, os: &str, open: bool) -> PodParts {
    let kind = if open { "open" } else { "proprietary" };
    let digest = input.key.driver.digest();
    let container = operand_container(
        input,
        "driver",
        vec![
            env("KERNEL_MODULE_TYPE", kind),
            // What drivers before 570 understand of the same question.
            env("OPEN_KERNEL_MODULES_ENABLED", if open { "true" } else { "false" }),
            // The runtime must not inject a driver into the container that installs it.
            env("NVIDIA_VISIBLE_DEVICES", "void"),
            // By which a container that starts again knows that what is loaded is its own.
            env("DRIVER_CONFIG_DIGEST", &digest),
        ],
        vec!["init".to_owned()],
    );
    let mut mounts = vec![
        mount("run-nvidia", "/run/nvidia", Mode::Share),
        mount("run-fabricmanager", "/run/nvidia-fabricmanager", Mode::Writable),
        mount("run-topologyd", "/run/nvidia-topologyd", Mode::Writable),
        mount("var-log", "/var/log", Mode::Writable),
        mount("os-release", "/host-etc/os-release", Mode::ReadOnly),
        mount("firmware-search-path", "/sys/module/firmware_class/parameters/path", Mode::Writable),
        mount("firmware", "/lib/firmware", Mode::Writable),
        mount("sys", "/host/sys", Mode::ReadOnly),
        unpacked::mounted(),
    ];
    let (files, mounted) = host_files::of(input, os);
    mounts.extend(mounted);
    let main = Container {
        command: Some(guarded("nvidia-driver", version, &digest)),
        // Privileged: it loads kernel modules, and its mount of the driver root must reach the host.
        security_context: Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() }),
        volume_mounts: Some(mounts),
        ..container
    };
    // A pod that waits here shows in its own status that it does; what guards the later starts is `guarded`.
    let guard = own_container(
        input.settings,
        GUARD,
        &["guard", "--host-root", "/host", "--version", version, "--digest", &digest],
        vec![mount("sys", "/host/sys", Mode::ReadOnly), mount("run-nvidia", "/host/run/nvidia", Mode::Follow)],
    );
    let mut volumes = vec![
        unpacked::volume(),
        host_path("sys", "/sys", None),
        host_path("run-nvidia", "/run/nvidia", Some("DirectoryOrCreate")),
        host_path("run-fabricmanager", "/run/nvidia-fabricmanager", Some("DirectoryOrCreate")),
        host_path("run-topologyd", "/run/nvidia-topologyd", Some("DirectoryOrCreate")),
        host_path("var-log", "/var/log", None),
        host_path("os-release", "/etc/os-release", None),
        host_path("firmware-search-path", "/sys/module/firmware_class/parameters/path", None),
        // GSP firmware is read by the kernel from the host, so it lies where the host sees the driver's root.
        host_path("firmware", "/run/nvidia/driver/lib/firmware", Some("DirectoryOrCreate")),
    ];
    volumes.extend(device_nodes::volumes());
    volumes.extend(files);
    PodParts {
        init: vec![
            guard,
            nouveau::container(input.settings),
            unpacked::init(input.settings),
            device_nodes::container(input.settings),
        ],
        main,
        volumes,
        host: HostNamespaces::Pid,
        grace_seconds: GRACE_SECONDS,
    }
}

/// The command that starts the driver's own program behind the guard. Kubelet starts a container that has died again
/// without its pod's init containers, and an image that reloads the driver on every start would fail for as long as a
/// program uses it. What the dead container left mounted goes first: a gate would take it for the new one's.
fn guarded(program: &str, version: &str, digest: &str) -> Vec<String> {
    unpacked::command(&[
        "guard",
        "--host-root",
        "/host",
        "--version",
        version,
        "--digest",
        digest,
        "--state-file",
        STATE_FILE,
        "--waits-file",
        WAITS_FILE,
        "--unmount",
        CONTAINER_ROOT,
        "--pid-file",
        DRIVER_PID_FILE,
        "--",
        program,
    ])
}
