//! NVIDIA's device plugin, which answers with CDI devices, or with environment variables for NVIDIA's runtime, and MPS's control daemon.

use gpu_operator_common::mig_layout::MigLayout;
use gpu_operator_crd::{
    policy::{MigStrategy, Sharing},
    report::{CDI_SPECS, CONTAINER_ROOT, HOST_ROOT},
};
use k8s_openapi::api::core::v1::{Container, SecurityContext, Volume, VolumeMount};

use crate::{
    container_names::DIVIDER,
    desired::{stages::toolkit_install_dir, toolkit::ToolkitChoice},
    manifests::{
        device_plugin::config::{self, SOCKETS},
        pod::{
            self, HostNamespaces, Mode, PodInput, PodParts, driver_gate, driver_gate_volumes, env, host_path, mount,
            operand_container, own_container, privileged_root,
        },
        toolkit,
    },
    settings::Settings,
};

const PROGRAM: &str = "nvidia-device-plugin";

pub fn nvidia_pod(
    input: &PodInput<'_>,
    sharing: Option<&Sharing>,
    mig: MigStrategy,
    layout: Option<&MigLayout>,
) -> PodParts {
    let root = input.key.driver.root();
    let mut environment = vec![
        env("DEVICE_LIST_STRATEGY", strategy(&input.key.toolkit)),
        env("NVIDIA_DRIVER_ROOT", root),
        env("NVIDIA_DEV_ROOT", input.key.driver.dev_root()),
        env("DRIVER_ROOT_CTR_PATH", pod::DRIVER_ROOT),
        env("NVIDIA_CDI_HOOK_PATH", &format!("{}/nvidia-cdi-hook", toolkit_install_dir(input.key))),
        // Runtimes that inject by environment must not change this container.
        env("NVIDIA_VISIBLE_DEVICES", "void"),
    ];
    if mig != MigStrategy::None {
        environment.extend([env("MIG_STRATEGY", mig.as_str()), env("NVIDIA_MIG_MONITOR_DEVICES", "all")]);
    }
    let mut mounts = vec![
        mount("sockets", SOCKETS, Mode::Writable),
        mount("driver-root", pod::DRIVER_ROOT, Mode::Follow),
        mount("cdi", CDI_SPECS, Mode::Writable),
    ];
    let mut volumes = driver_gate_volumes(input);
    volumes.extend([
        host_path("sockets", SOCKETS, None),
        host_path("driver-root", root, Some("DirectoryOrCreate")),
        host_path("cdi", CDI_SPECS, Some("DirectoryOrCreate")),
    ]);
    let mut init = vec![driver_gate(input)];
    if let Some((gate, of_gate)) = toolkit::gate(input) {
        init.push(gate);
        volumes.extend(of_gate);
    }
    if let Some(layout) = layout {
        init.push(mig_container(input, layout));
        volumes.extend(mig_volumes(input));
    }
    if let Some(sharing) = sharing {
        init.push(config::writer(input.settings, config::NVIDIA_FILE, &config::nvidia(sharing, mig)));
        environment.push(env("CONFIG_FILE", &format!("/etc/nvidia-device-plugin/{}", config::NVIDIA_FILE)));
        mounts.push(mount(config::VOLUME, "/etc/nvidia-device-plugin", Mode::ReadOnly));
        volumes.push(config::volume());
    }
    let by_mps = sharing.is_some_and(|sharing| sharing.mps.is_some());
    if by_mps {
        init.push(mps_gate(input.settings));
        environment.push(env("MPS_ROOT", MPS_ROOT));
        mounts.extend(mps_mounts(Mode::Follow));
        volumes.extend(mps_volumes());
    }
    let command = plugin_command(root, by_mps);
    if command.is_some() {
        init.push(pod::unpack_guard(input.settings));
        mounts.push(pod::guard_mount());
        volumes.push(pod::guard_volume());
    }
    let main = Container {
        command,
        // Privileged: NVML opens the GPUs' device nodes.
        security_context: Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() }),
        volume_mounts: Some(mounts),
        ..operand_container(input, "device-plugin", environment, vec![])
    };
    PodParts {
        init,
        main,
        volumes,
        host: if layout.is_some() { HostNamespaces::Pid } else { HostNamespaces::None },
        grace_seconds: 30,
    }
}

/// Returns the command, if it is not the image's own. The plugin checks the MPS daemons with the driver's own program. It finds NVML only
/// in the folders of most packages (k8s-device-plugin v0.19.3, `cmd/nvidia-device-plugin/root.go`), and resolves links in its own root: a
/// host may have its driver elsewhere, as appliances do, or behind links, as Debian does.
fn plugin_command(driver_root: &str, by_mps: bool) -> Option<Vec<String>> {
    let options: &[&str] = if by_mps { &["--mps"] } else { &[] };
    (by_mps || driver_root == HOST_ROOT).then(|| pod::injecting_command(options, PROGRAM))
}

/// The plugin's own pod needs no RuntimeClass: it mounts the driver's root and the device nodes, and could not wait for a runtime that does
/// not exist yet.
fn strategy(toolkit: &ToolkitChoice) -> &'static str {
    // NVIDIA's runtime, of this operator or of the host, reads the environment.
    if toolkit.is_by_cdi() { "cdi-cri" } else { "envvar" }
}

// An init container applies the MIG layout whenever the plugin starts, including after a reboot. Without a difference nothing changes.

/// The pod must share the host's process namespace: otherwise NVML would not report which processes use the GPUs (unverified).
fn mig_container(input: &PodInput<'_>, layout: &MigLayout) -> Container {
    let root = input.key.driver.root();
    let layout = serde_json::json!(layout).to_string();
    // The library creates device nodes. Those of a driver container are in its root; otherwise they are in the host's /dev. A driver
    // root that is not a complete file system is used from the host's root, where links lead anywhere.
    let mounts = if root == CONTAINER_ROOT {
        vec![
            mount("sys", "/host/sys", Mode::ReadOnly),
            mount("proc", "/host/proc", Mode::ReadOnly),
            mount("driver-root", &format!("/host{root}"), Mode::Writable),
        ]
    } else {
        vec![mount("host", "/host", Mode::ReadOnly), mount("dev", "/host/dev", Mode::Writable)]
    };
    let args = ["mig", "--host-root", "/host", "--driver-root", root, "--layout", &layout];
    Container {
        // Privileged: NVML opens the GPUs' device nodes, only root may change the layout, and SYS_CHROOT is needed to
        // load the library in the driver's root.
        security_context: Some(privileged_root()),
        ..own_container(input.settings, DIVIDER, &args, mounts)
    }
}

fn mig_volumes(input: &PodInput<'_>) -> Vec<Volume> {
    if input.key.driver.root() == CONTAINER_ROOT {
        vec![host_path("proc", "/proc", None)]
    } else {
        vec![host_path("host", "/", None), host_path("dev", "/dev", None)]
    }
}

// MPS's control daemon is a separate stage: programs on its GPUs end with it, so a restart of the device plugin must not restart it.
// Daemon and plugin start the driver's programs with an environment without paths of programs and libraries, and without a configured
// runtime the driver is not injected into their containers: the probe injects it as their first program.

/// Common to the daemon, the plugin and the pods that share a GPU.
const MPS_ROOT: &str = "/run/nvidia/mps";
/// Fixed in NVIDIA's programs.
const MPS_ROOT_IN_CONTAINER: &str = "/mps";
/// In which programs on the GPUs and the daemons end.
const MPS_GRACE_SECONDS: i64 = 30;

pub fn mps_daemon_pod(input: &PodInput<'_>, sharing: &Sharing, mig: MigStrategy) -> PodParts {
    // Privileged: the daemons open the GPUs' device nodes, and their shared memory is a mount that must be visible on
    // the host.
    let privileged = || Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() });
    let shared_memory = Container {
        command: Some(vec!["mps-control-daemon".to_owned()]),
        args: Some(vec!["mount-shm".to_owned()]),
        env: None,
        security_context: privileged(),
        volume_mounts: Some(vec![mount("mps-root", MPS_ROOT_IN_CONTAINER, Mode::Share)]),
        ..operand_container(input, "mount-shared-memory", vec![], vec![])
    };
    let mut environment = vec![
        env("CONFIG_FILE", &format!("/etc/nvidia-device-plugin/{}", config::NVIDIA_FILE)),
        // Runtimes that inject by environment must not change this container.
        env("NVIDIA_VISIBLE_DEVICES", "void"),
    ];
    if mig != MigStrategy::None {
        environment.extend([env("MIG_STRATEGY", mig.as_str()), env("NVIDIA_MIG_MONITOR_DEVICES", "all")]);
    }
    let mut main_mounts = vec![
        mount(config::VOLUME, "/etc/nvidia-device-plugin", Mode::ReadOnly),
        mount("driver-root", pod::DRIVER_ROOT, Mode::Follow),
        pod::guard_mount(),
    ];
    main_mounts.extend(mps_mounts(Mode::Writable));
    let main = Container {
        command: Some(pod::injecting_command(&["--mps"], "mps-control-daemon")),
        security_context: privileged(),
        volume_mounts: Some(main_mounts),
        ..operand_container(input, "mps-control-daemon", environment, vec![])
    };
    let root = input.key.driver.root();
    let mut volumes = driver_gate_volumes(input);
    volumes.extend([host_path("driver-root", root, Some("DirectoryOrCreate")), config::volume(), pod::guard_volume()]);
    volumes.extend(mps_volumes());
    let file = config::writer(input.settings, config::NVIDIA_FILE, &config::nvidia(sharing, mig));
    // The daemon distinguishes its clients by the host's process IDs.
    PodParts {
        init: vec![driver_gate(input), file, pod::unpack_guard(input.settings), shared_memory],
        main,
        volumes,
        host: HostNamespaces::Pid,
        grace_seconds: MPS_GRACE_SECONDS,
    }
}

/// The plugin waits until the daemons of all GPUs run.
fn mps_gate(settings: &Settings) -> Container {
    let args = ["wait", "mps", "--host-root", "/host", "--mps-root", MPS_ROOT];
    own_container(settings, "wait-for-mps", &args, vec![mount("mps-root", "/host/run/nvidia/mps", Mode::ReadOnly)])
}

/// For daemon and plugin.
fn mps_mounts(mode: Mode) -> [VolumeMount; 2] {
    [mount("mps-root", MPS_ROOT_IN_CONTAINER, mode), mount("mps-shared-memory", "/dev/shm", mode)]
}

fn mps_volumes() -> [Volume; 2] {
    [
        host_path("mps-root", MPS_ROOT, Some("DirectoryOrCreate")),
        host_path("mps-shared-memory", &format!("{MPS_ROOT}/shm"), Some("DirectoryOrCreate")),
    ]
}
