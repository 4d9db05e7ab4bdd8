//! The control daemon of CUDA's MPS, a stage of its own: what runs on its GPUs ends with it, so a device plugin that is
//! started anew must not take it along.
//!
//! The image is the plugin's. Daemon and plugin start the driver's programs with an environment of their own, in which there is
//! no path of programs or libraries, and no runtime brings the driver into their containers where none is configured: the
//! probe does, as their first program.

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

/// Where daemon, plugin and the pods that share a GPU meet, on the host.
pub const ROOT: &str = "/run/nvidia/mps";
/// The same, as upstream's programs have it built in.
const ROOT_IN_CONTAINER: &str = "/mps";
/// Programs on the GPUs are told to end, and the daemons with them.
const GRACE_SECONDS: i64 = 30;

/// The daemon's pod.
#[must_use]
pub fn pod(input: &PodInput<'_>, sharing: &Sharing, mig: MigStrategy) -> PodParts {
    // Privileged: the daemons open the GPUs' device nodes, and its shared memory is a mount that the host must see.
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
        // A runtime that injects by environment must leave this container alone.
        env("NVIDIA_VISIBLE_DEVICES", "void"),
    ];
    if mig != MigStrategy::None {
        environment.extend([env("MIG_STRATEGY", mig.as_str()), env("NVIDIA_MIG_MONITOR_DEVICES", "all")]);
    }
    let mut main_mounts = vec![
        mount(config::VOLUME, "/etc/nvidia-device-plugin", Mode::ReadOnly),
        mount("driver-root", config::DRIVER_ROOT_IN_CONTAINER, Mode::Follow),
        unpacked::mounted(),
    ];
    main_mounts.extend(mounts(Mode::Writable));
    let main = Container {
        command: Some(injected("mps-control-daemon")),
        security_context: privileged(),
        volume_mounts: Some(main_mounts),
        ..operand_container(input, "mps-control-daemon", environment, vec![])
    };
    let root = input.key.driver.root();
    let mut volumes = driver_gate_volumes(input);
    volumes.extend([host_path("driver-root", root, Some("DirectoryOrCreate")), config::volume(), unpacked::volume()]);
    volumes.extend(self::volumes());
    let file = config::writer(input.settings, config::NVIDIA_FILE, &config::nvidia(sharing, mig));
    // The daemon tells its clients apart by the host's process ids.
    PodParts {
        init: vec![driver_gate(input), file, unpacked::init(input.settings), shared_memory],
        main,
        volumes,
        host: HostNamespaces::Pid,
        grace_seconds: GRACE_SECONDS,
    }
}

/// The command of a container that has the driver's programs and libraries where this program of its image looks for them.
#[must_use]
pub fn injected(program: &str) -> Vec<String> {
    unpacked::command(&["inject", "--driver-root", config::DRIVER_ROOT_IN_CONTAINER, "--", program])
}

/// The plugin's gate: waits until the daemons of all GPUs run.
#[must_use]
pub fn gate(settings: &Settings) -> Container {
    let args = ["wait", "mps", "--host-root", "/host", "--mps-root", ROOT];
    own_container(settings, "wait-for-mps", &args, vec![mount("mps-root", "/host/run/nvidia/mps", Mode::ReadOnly)])
}

/// What daemon and plugin mount alike.
#[must_use]
pub fn mounts(mode: Mode) -> [VolumeMount; 2] {
    [mount("mps-root", ROOT_IN_CONTAINER, mode), mount("mps-shared-memory", "/dev/shm", mode)]
}

/// The volumes of [`mounts`].
#[must_use]
pub fn volumes() -> [Volume; 2] {
    [
        host_path("mps-root", ROOT, Some("DirectoryOrCreate")),
        host_path("mps-shared-memory", &format!("{ROOT}/shm"), Some("DirectoryOrCreate")),
    ]
}
