//! NVIDIA's driver container, which loads the kernel modules and bind-mounts its root at `/run/nvidia/driver`.

use gpu_operator_crd::report::{CONTAINER_ROOT, WAITS_FILE};
use k8s_openapi::api::core::v1::{Container, SecurityContext};

use crate::{
    container_names::GUARD,
    desired::driver::choice::DriverChoice,
    manifests::{
        driver::{device_nodes, host_files, nouveau},
        gates::DRIVER_PID_FILE,
        pod::{HostNamespaces, Mode, PodInput, PodParts, env, host_path, mount, operand_container, own_container},
        unpacked,
    },
};

/// The time in which the driver's services end before it is unloaded.
const GRACE_SECONDS: i64 = 60;

/// The file in which the container stores the digest of the loaded driver.
const STATE_FILE: &str = "/run/nvidia/nvidia-driver.state";

/// Returns the driver's pod.
pub fn pod(input: &PodInput<'_>, version: &str, os: &str, open: bool) -> PodParts {
    let kind = if open { "open" } else { "proprietary" };
    let digest = input.key.driver.digest();
    let container = operand_container(
        input,
        "driver",
        vec![
            env("KERNEL_MODULE_TYPE", kind),
            // The equivalent for drivers before 570.
            env("OPEN_KERNEL_MODULES_ENABLED", if open { "true" } else { "false" }),
            // The runtime must not inject a driver into the container that installs it.
            env("NVIDIA_VISIBLE_DEVICES", "void"),
            // With this a restarted container recognizes the driver that it has loaded.
            env(DriverChoice::DIGEST_VARIABLE, &digest),
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
    // A pod that waits in this container shows it in its status; later starts are guarded by `guarded`.
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
        // The kernel reads GSP firmware from the host, so it is stored in the driver's root on the host.
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

/// Returns the command that starts the driver's own program after the guard. Kubelet restarts a failed container
/// without its pod's init containers, and an image that reloads the driver on every start would fail while a program
/// uses the driver. Mounts of the failed container are removed first: a gate would take them for the new container's.
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
