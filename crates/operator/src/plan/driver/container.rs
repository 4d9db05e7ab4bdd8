//! NVIDIA's driver container, which loads the kernel modules and binds its root into `/run/nvidia/driver`.

use k8s_openapi::api::core::v1::{Container, SecurityContext};

use super::super::daemon_set::{Mode, PodInput, PodParts, env, host_path, mount, operand_container, own_container};

/// Unloading waits for the driver's own services to end.
const GRACE_SECONDS: i64 = 60;

/// The driver's pod.
#[must_use]
pub fn pod(input: &PodInput<'_>, version: &str, open: bool) -> PodParts {
    let kind = if open { "open" } else { "proprietary" };
    let container = operand_container(
        input,
        "driver",
        vec![
            env("KERNEL_MODULE_TYPE", kind),
            // What drivers before 570 understand of the same question.
            env("OPEN_KERNEL_MODULES_ENABLED", if open { "true" } else { "false" }),
            // The runtime must not inject a driver into the container that installs it.
            env("NVIDIA_VISIBLE_DEVICES", "void"),
        ],
        vec!["init".to_owned()],
    );
    let main = Container {
        command: Some(vec!["nvidia-driver".to_owned()]),
        // Privileged: it loads kernel modules, and its mount of the driver root must reach the host.
        security_context: Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() }),
        volume_mounts: Some(vec![
            mount("run-nvidia", "/run/nvidia", Mode::Share),
            mount("run-fabricmanager", "/run/nvidia-fabricmanager", Mode::Writable),
            mount("run-topologyd", "/run/nvidia-topologyd", Mode::Writable),
            mount("var-log", "/var/log", Mode::Writable),
            mount("os-release", "/host-etc/os-release", Mode::ReadOnly),
            mount("firmware-search-path", "/sys/module/firmware_class/parameters/path", Mode::Writable),
            mount("firmware", "/lib/firmware", Mode::Writable),
        ]),
        ..container
    };
    // Before: an image that reinstalls on every start must not be let at a driver that is in use.
    let guard = own_container(
        input.settings,
        "guard-driver-in-use",
        &["guard", "--host-root", "/host", "--version", version],
        vec![mount("sys", "/host/sys", Mode::ReadOnly), mount("run-nvidia", "/host/run/nvidia", Mode::Follow)],
    );
    PodParts {
        init: vec![guard],
        main,
        volumes: vec![
            host_path("sys", "/sys", None),
            host_path("run-nvidia", "/run/nvidia", Some("DirectoryOrCreate")),
            host_path("run-fabricmanager", "/run/nvidia-fabricmanager", Some("DirectoryOrCreate")),
            host_path("run-topologyd", "/run/nvidia-topologyd", Some("DirectoryOrCreate")),
            host_path("var-log", "/var/log", None),
            host_path("os-release", "/etc/os-release", None),
            host_path("firmware-search-path", "/sys/module/firmware_class/parameters/path", None),
            // GSP firmware is read by the kernel from the host, so it lies where the host sees the driver's root.
            host_path("firmware", "/run/nvidia/driver/lib/firmware", Some("DirectoryOrCreate")),
        ],
        host_pid: true,
        grace_seconds: GRACE_SECONDS,
    }
}
