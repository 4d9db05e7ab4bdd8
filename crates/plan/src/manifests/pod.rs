//! The building blocks of the pods of all stages: containers, mounts, volumes and security settings.

use std::collections::BTreeMap;

use gpu_operator_crd::{ClusterGpuPolicy, policy::Pool};
use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, EmptyDirVolumeSource, EnvVar, HostPathVolumeSource, LocalObjectReference,
        ResourceRequirements, SeccompProfile, SecurityContext, Toleration, Volume, VolumeMount,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    desired::{
        effective_spec,
        key::{StageSpec, VariantKey},
    },
    settings::Settings,
};

/// User and group of the gates: an unprivileged ID.
const UNPRIVILEGED: i64 = 65532;

/// The namespaces of the host that a pod uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNamespaces {
    None,
    /// The host's process namespace.
    Pid,
    /// The host's process and network namespaces.
    PidAndNetwork,
}

/// The parts of a stage's pod.
pub struct PodParts {
    /// Gates and installers, in order.
    pub init: Vec<Container>,
    pub main: Container,
    /// The volumes that they mount.
    pub volumes: Vec<Volume>,
    /// The namespaces of the host that the pod uses.
    pub host: HostNamespaces,
    /// The grace period in which the main container must end, in seconds.
    pub grace_seconds: i64,
}

/// The input for a stage's pod.
pub struct PodInput<'a> {
    /// The operator's settings.
    pub settings: &'a Settings,
    pub policy: &'a ClusterGpuPolicy,
    pub key: &'a VariantKey,
    pub spec: &'a StageSpec,
}

/// Returns the pull secrets of all pods of this operator: the user's, and those of this operator's images.
pub fn pull_secrets(settings: &Settings, policy: &ClusterGpuPolicy) -> Option<Vec<LocalObjectReference>> {
    let mut names: Vec<String> = policy.spec.images.pull_secrets.iter().map(|secret| secret.name.clone()).collect();
    names.extend(settings.image_pull_secrets.iter().cloned());
    names.sort();
    names.dedup();
    (!names.is_empty()).then(|| names.into_iter().map(|name| LocalObjectReference { name }).collect())
}

/// Returns the tolerations of this operator's pods on the nodes of a pool.
pub fn tolerations(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> Vec<Toleration> {
    effective_spec::tolerations(policy, pool).unwrap_or_else(every_taint)
}

/// Returns a toleration of all taints: operands run on every GPU node.
fn every_taint() -> Vec<Toleration> {
    vec![Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() }]
}

/// Returns the main or installing container of an operand. The user's environment overrides this operator's by name.
pub fn operand_container(input: &PodInput<'_>, name: &str, env: Vec<EnvVar>, args: Vec<String>) -> Container {
    let operand = &input.spec.operand;
    let mut env: Vec<EnvVar> =
        env.into_iter().filter(|own| operand.env.iter().all(|users| users.name != own.name)).collect();
    env.extend(operand.env.iter().cloned());
    let args: Vec<String> = args.into_iter().chain(operand.args.iter().cloned()).collect();
    Container {
        name: name.to_owned(),
        image: Some(input.spec.image.clone()),
        image_pull_policy: Some(input.policy.spec.images.pull_policy.unwrap_or_default().as_str().to_owned()),
        env: (!env.is_empty()).then_some(env),
        args: (!args.is_empty()).then_some(args),
        resources: operand.resources.clone(),
        // The end of a container's log is shown in the node's status.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

/// Returns an unprivileged container of the probe's image, for gates, guards and waiting.
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

/// Returns a security context without capabilities or privilege escalation, and with a read-only root.
pub fn unprivileged() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..SecurityContext::default()
    }
}

/// Returns a security context of root with these capabilities only. Capabilities of another user would be dropped when the program
/// starts.
pub fn root_with(capabilities: &[&str]) -> SecurityContext {
    let add = capabilities.iter().map(|&name| name.to_owned()).collect();
    SecurityContext {
        run_as_user: Some(0),
        run_as_group: Some(0),
        capabilities: Some(Capabilities { add: Some(add), drop: Some(vec!["ALL".to_owned()]) }),
        ..unprivileged()
    }
}

/// Returns a privileged security context of this operator's image, which writes only to its mounts. Images of others may write to
/// their root.
pub fn privileged_root() -> SecurityContext {
    SecurityContext {
        privileged: Some(true),
        run_as_user: Some(0),
        read_only_root_filesystem: Some(true),
        ..SecurityContext::default()
    }
}

/// How a volume is mounted.
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

/// Returns the volume of a folder or file of the host.
pub fn host_path(name: &str, path: &str, kind: Option<&str>) -> Volume {
    Volume {
        name: name.to_owned(),
        host_path: Some(HostPathVolumeSource { path: path.to_owned(), type_: kind.map(str::to_owned) }),
        ..Volume::default()
    }
}

/// Returns the volume of a folder with the lifetime of the pod.
pub fn empty_dir(name: &str) -> Volume {
    Volume { name: name.to_owned(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() }
}

/// Returns an environment variable.
pub fn env(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}
