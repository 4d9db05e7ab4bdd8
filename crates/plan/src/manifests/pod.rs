//! The building blocks of the pods of all stages: containers, mounts, volumes and security settings.

use std::collections::BTreeMap;

use gpu_operator_crd::{ClusterGpuPolicy, report::CONTAINER_ROOT};
use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, EmptyDirVolumeSource, EnvVar, HostPathVolumeSource, LocalObjectReference,
        ResourceRequirements, SeccompProfile, SecurityContext, Volume, VolumeMount,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    desired::{
        driver::DriverChoice,
        key::{StageSpec, VariantKey},
    },
    pool_settings::PoolSettings,
    settings::Settings,
};

/// An unprivileged ID.
const UNPRIVILEGED: i64 = 65532;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNamespaces {
    None,
    Pid,
    /// Process and network namespace.
    PidAndNetwork,
}

pub struct PodParts {
    /// Gates and installers, in order.
    pub init: Vec<Container>,
    pub main: Container,
    pub volumes: Vec<Volume>,
    pub host: HostNamespaces,
    /// In which the main container must end.
    pub grace_seconds: i64,
}

pub struct PodInput<'a> {
    pub settings: &'a Settings,
    pub pool: &'a PoolSettings<'a>,
    pub key: &'a VariantKey,
    pub spec: &'a StageSpec,
}

/// The user's, and those of this operator's images.
pub fn pull_secrets(settings: &Settings, policy: &ClusterGpuPolicy) -> Option<Vec<LocalObjectReference>> {
    let mut names: Vec<String> = policy.spec.images.pull_secrets.iter().map(|secret| secret.name.clone()).collect();
    names.extend(settings.image_pull_secrets.iter().cloned());
    names.sort();
    names.dedup();
    (!names.is_empty()).then(|| names.into_iter().map(|name| LocalObjectReference { name }).collect())
}

/// The main or installing container of an operand. The user's environment overrides this operator's by name.
pub fn operand_container(input: &PodInput<'_>, name: &str, env: Vec<EnvVar>, args: Vec<String>) -> Container {
    let operand = &input.spec.operand;
    let mut env: Vec<EnvVar> =
        env.into_iter().filter(|own| operand.env.iter().all(|users| users.name != own.name)).collect();
    env.extend(operand.env.iter().cloned());
    let args: Vec<String> = args.into_iter().chain(operand.args.iter().cloned()).collect();
    Container {
        name: name.to_owned(),
        image: Some(input.spec.image.clone()),
        image_pull_policy: Some(input.pool.policy.spec.images.pull_policy.unwrap_or_default().as_str().to_owned()),
        env: (!env.is_empty()).then_some(env),
        args: (!args.is_empty()).then_some(args),
        resources: operand.resources.clone(),
        // The end of a container's log is shown in the node's status.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

/// An unprivileged container of the probe's image, for gates, guards and waiting.
pub fn own_container(settings: &Settings, name: &str, args: &[&str], mounts: Vec<VolumeMount>) -> Container {
    Container {
        name: name.to_owned(),
        image: Some(settings.probe_image.clone()),
        image_pull_policy: Some(settings.probe_pull_policy.clone()),
        args: Some(args.iter().map(|&arg| arg.to_owned()).collect()),
        volume_mounts: (!mounts.is_empty()).then_some(mounts),
        resources: Some(ResourceRequirements {
            requests: Some(BTreeMap::from([
                ("cpu".to_owned(), Quantity("1m".to_owned())),
                ("memory".to_owned(), Quantity("8Mi".to_owned())),
            ])),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            run_as_user: Some(UNPRIVILEGED),
            run_as_group: Some(UNPRIVILEGED),
            run_as_non_root: Some(true),
            ..unprivileged()
        }),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

/// Without capabilities or privilege escalation, and with a read-only root.
pub fn unprivileged() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..SecurityContext::default()
    }
}

/// Root, because capabilities of another user would be dropped when the program starts.
pub fn root_with(capabilities: &[&str]) -> SecurityContext {
    let add = capabilities.iter().map(|&name| name.to_owned()).collect();
    SecurityContext {
        run_as_user: Some(0),
        run_as_group: Some(0),
        capabilities: Some(Capabilities { add: Some(add), drop: Some(vec!["ALL".to_owned()]) }),
        ..unprivileged()
    }
}

/// For this operator's image, which writes only to its mounts. Images of others may write to their root.
pub fn privileged_root() -> SecurityContext {
    SecurityContext {
        privileged: Some(true),
        run_as_user: Some(0),
        read_only_root_filesystem: Some(true),
        ..SecurityContext::default()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    ReadOnly,
    /// Read-only; later mounts of the host are visible.
    Follow,
    Writable,
    /// Writable; later mounts of the host are visible.
    FollowWritable,
    /// Writable; mounts of the container are visible on the host. Requires a privileged container.
    Share,
}

pub fn mount(volume: &str, path: &str, mode: Mode) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        read_only: matches!(mode, Mode::ReadOnly | Mode::Follow).then_some(true),
        mount_propagation: match mode {
            Mode::Follow | Mode::FollowWritable => Some("HostToContainer".to_owned()),
            Mode::Share => Some("Bidirectional".to_owned()),
            Mode::ReadOnly | Mode::Writable => None,
        },
        ..VolumeMount::default()
    }
}

pub fn host_path(name: &str, path: &str, kind: Option<&str>) -> Volume {
    Volume {
        name: name.to_owned(),
        host_path: Some(HostPathVolumeSource { path: path.to_owned(), type_: kind.map(str::to_owned) }),
        ..Volume::default()
    }
}

pub fn empty_dir(name: &str) -> Volume {
    Volume { name: name.to_owned(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() }
}

pub fn env(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

/// The driver's container locks it while it runs.
pub const DRIVER_PID_FILE: &str = "/run/nvidia/nvidia-driver.pid";

/// Waits until the desired driver is loaded and its libraries are installed.
pub fn driver_gate(input: &PodInput<'_>) -> Container {
    let root = input.key.driver.root();
    let mut args = vec!["wait", "driver", "--host-root", "/host", "--driver-root", root];
    if let Some(version) = input.key.driver.version() {
        args.extend(["--version", version]);
    }
    if matches!(input.key.driver, DriverChoice::Container { .. }) {
        args.extend(["--pid-file", DRIVER_PID_FILE]);
    }
    let mounts = vec![
        mount("sys", "/host/sys", Mode::ReadOnly),
        mount("driver", format!("/host{}", driver_mount(root)).trim_end_matches('/'), Mode::Follow),
    ];
    own_container(input.settings, "wait-for-driver", &args, mounts)
}

pub fn driver_gate_volumes(input: &PodInput<'_>) -> Vec<Volume> {
    vec![
        host_path("sys", "/sys", None),
        host_path("driver", driver_mount(input.key.driver.root()), Some("DirectoryOrCreate")),
    ]
}

/// Returns the folder to mount to inspect a driver root: the parent of a container's root, because that is mounted and unmounted. A host's
/// whole root is mounted: the dynamic linker's files in /etc name the paths of libraries, and links lead to /opt, /nix and elsewhere. The
/// gate reads only files that all users of the host may read.
fn driver_mount(root: &str) -> &str {
    match root {
        CONTAINER_ROOT => "/run/nvidia",
        other => other,
    }
}

/// Returns kubelet's root directory on the host.
pub fn kubelet_root<'a>(input: &'a PodInput<'_>) -> &'a str {
    input.settings.kubelet_root.as_deref().or(input.key.kubelet_root).unwrap_or("/var/lib/kubelet")
}

// The probe is the first program of other images' containers where something is necessary at every start: init containers run only once in
// a
// pod.

/// Copies the program for the other image's container.
const UNPACK: &str = "unpack-guard";
/// The program includes all libraries, so it works in any image.
const GUARD_VOLUME: &str = "guard";
const GUARD_DIRECTORY: &str = "/gpu-operator";
/// Where containers that use the driver themselves see its root.
pub const DRIVER_ROOT: &str = "/driver-root";

pub fn unpack_guard(settings: &Settings) -> Container {
    own_container(
        settings,
        UNPACK,
        &["unpack", GUARD_DIRECTORY],
        vec![mount(GUARD_VOLUME, GUARD_DIRECTORY, Mode::Writable)],
    )
}

pub fn guard_volume() -> Volume {
    empty_dir(GUARD_VOLUME)
}

pub fn guard_mount() -> VolumeMount {
    mount(GUARD_VOLUME, GUARD_DIRECTORY, Mode::ReadOnly)
}

/// Runs the probe with these arguments in the other image's container.
pub fn guard_command(args: &[&str]) -> Vec<String> {
    let (loader, program) = (format!("{GUARD_DIRECTORY}/ld.so"), format!("{GUARD_DIRECTORY}/nvml-probe"));
    let words = [loader.as_str(), "--library-path", GUARD_DIRECTORY, program.as_str()];
    words.into_iter().chain(args.iter().copied()).map(str::to_owned).collect()
}

/// Runs a program of the image with the driver where it looks for it, given options of `inject`.
pub fn injecting_command(options: &[&str], program: &str) -> Vec<String> {
    guard_command(&[&["inject", "--driver-root", DRIVER_ROOT], options, &["--", program]].concat())
}
