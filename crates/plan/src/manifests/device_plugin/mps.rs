//! The control daemon of CUDA's MPS. It is a separate stage because programs on its GPUs end with it, so a restart of
//! the device plugin must not restart it.
//!
//! The image is the plugin's. Daemon and plugin start the driver's programs with an environment without paths of
//! programs and libraries, and without a configured runtime the driver is not injected into their containers: the probe
//! injects it as their first program.

use gpu_operator_crd::policy::{MigStrategy, Sharing};
use k8s_openapi::api::core::v1::{Container, SecurityContext, Volume, VolumeMount};

use crate::{
    manifests::{
        device_plugin::config,
        gates::{driver_gate, driver_gate_volumes},
        pod::{HostNamespaces, Mode, PodInput, PodParts, env, host_path, mount, operand_container, own_container},
        unpacked,
    },
    settings::Settings,
};

/// The folder of the host that the daemon, the plugin and the pods that share a GPU have in common.
pub const ROOT: &str = "/run/nvidia/mps";
/// The same folder in containers, fixed in NVIDIA's programs.
const ROOT_IN_CONTAINER: &str = "/mps";
/// The time in which programs on the GPUs and the daemons end.
const GRACE_SECONDS: i64 = 30;

/// Returns the daemon's pod.
pub fn pod(input: &PodInput<'_>, sharing: &Sharing, mig: MigStrategy) -> PodParts {
    // Privileged: the daemons open the GPUs' device nodes, and their shared memory is a mount that must be visible on
    // the host.
    let privileged = || Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() });
    let shared_memory = Container {
        command: Some(vec!["mps-control-daemon".to_owned()]),
        args: Some(vec!["mount-shm".to_owned()]),
        env: None,
        security_context: privileged(),
        volume_mounts: Some(vec![mount("mps-root", ROOT_IN_CONTAINER, Mode::Share)]),
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
        mount("driver-root", unpacked::DRIVER_ROOT, Mode::Follow),
        unpacked::mounted(),
    ];
    main_mounts.extend(mounts(Mode::Writable));
    let main = Container {
        command: Some(unpacked::injected(&["--mps"], "mps-control-daemon")),
        security_context: privileged(),
        volume_mounts: Some(main_mounts),
        ..operand_container(input, "mps-control-daemon", environment, vec![])
    };
    let root = input.key.driver.root();
    let mut volumes = driver_gate_volumes(input);
    volumes.extend([host_path("driver-root", root, Some("DirectoryOrCreate")), config::volume(), unpacked::volume()]);
    volumes.extend(self::volumes());
    let file = config::writer(input.settings, config::NVIDIA_FILE, &config::nvidia(sharing, mig));
    // The daemon distinguishes its clients by the host's process IDs.
    PodParts {
        init: vec![driver_gate(input), file, unpacked::init(input.settings), shared_memory],
        main,
        volumes,
        host: HostNamespaces::Pid,
        grace_seconds: GRACE_SECONDS,
    }
}

/// Returns the plugin's gate, which waits until the daemons of all GPUs run.
pub fn gate(settings: &Settings) -> Container {
    let args = ["wait", "mps", "--host-root", "/host", "--mps-root", ROOT];
    own_container(settings, "wait-for-mps", &args, vec![mount("mps-root", "/host/run/nvidia/mps", Mode::ReadOnly)])
}

/// Returns the mounts that daemon and plugin have in common.
pub fn mounts(mode: Mode) -> [VolumeMount; 2] {
    [mount("mps-root", ROOT_IN_CONTAINER, mode), mount("mps-shared-memory", "/dev/shm", mode)]
}

/// Returns the volumes of [`mounts`].
pub fn volumes() -> [Volume; 2] {
    [
        host_path("mps-root", ROOT, Some("DirectoryOrCreate")),
        host_path("mps-shared-memory", &format!("{ROOT}/shm"), Some("DirectoryOrCreate")),
    ]
}
