//! What the pods of all stages are made of: containers, mounts, volumes, security.

use std::collections::BTreeMap;

use gpu_operator_crd::{ClusterGpuPolicy, keys};
use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, EmptyDirVolumeSource, EnvVar, HostPathVolumeSource, LocalObjectReference,
        ResourceRequirements, SeccompProfile, SecurityContext, Toleration, Volume, VolumeMount,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    desired::key::{StageSpec, VariantKey},
    settings::Settings,
};

/// User and group of the gates: nobody in particular, and not root.
const NOBODY: i64 = 65532;

/// Which namespaces of the host's a pod works in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNamespaces {
    /// None.
    None,
    /// It sees the host's processes.
    Pid,
    /// It also goes by the host's network.
    PidAndNetwork,
}

/// What one stage puts into its pod.
pub struct PodParts {
    /// Gates and installers, in order.
    pub init: Vec<Container>,
    /// The main container.
    pub main: Container,
    /// What they mount.
    pub volumes: Vec<Volume>,
    /// What of the host's it works in.
    pub host: HostNamespaces,
    /// How long the main container may take to end, in seconds.
    pub grace_seconds: i64,
}

/// Everything that a stage's pod is made of.
pub struct PodInput<'a> {
    /// The operator's settings.
    pub settings: &'a Settings,
    /// The policy.
    pub policy: &'a ClusterGpuPolicy,
    /// What the variant depends on.
    pub key: &'a VariantKey,
    /// The stage.
    pub spec: &'a StageSpec,
}

/// The pull secrets of every pod of ours: the user's and those of our own images.
#[must_use]
pub fn pull_secrets(settings: &Settings, policy: &ClusterGpuPolicy) -> Option<Vec<LocalObjectReference>> {
    let mut names = policy.spec.images.pull_secrets.clone();
    names.extend(settings.image_pull_secrets.iter().cloned());
    names.sort();
    names.dedup();
    (!names.is_empty()).then(|| names.into_iter().map(|name| LocalObjectReference { name }).collect())
}

/// What every pod of ours tolerates.
#[must_use]
pub fn tolerations(policy: &ClusterGpuPolicy) -> Vec<Toleration> {
    policy.spec.defaults.tolerations.clone().map_or_else(every_taint, with_our_own)
}

/// Operands belong on every GPU node, whatever keeps other pods off it.
fn every_taint() -> Vec<Toleration> {
    vec![Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() }]
}

/// A taint of ours must not keep our own pods from a node that is to get well.
fn with_our_own(mut tolerations: Vec<Toleration>) -> Vec<Toleration> {
    tolerations.push(Toleration {
        key: Some(keys::UNHEALTHY_TAINT.to_owned()),
        operator: Some("Exists".to_owned()),
        ..Toleration::default()
    });
    tolerations
}

/// The main or installing container of an operand: our environment first, then the user's over it by name.
#[must_use]
pub fn operand_container(input: &PodInput<'_>, name: &str, env: Vec<EnvVar>, args: Vec<String>) -> Container {
    let operand = &input.spec.operand;
    let mut env: Vec<EnvVar> =
        env.into_iter().filter(|ours| operand.env.iter().all(|theirs| theirs.name != ours.name)).collect();
    env.extend(operand.env.iter().cloned());
    let args: Vec<String> = args.into_iter().chain(operand.args.iter().cloned()).collect();
    Container {
        name: name.to_owned(),
        image: Some(input.spec.image.clone()),
        image_pull_policy: Some(input.policy.spec.images.pull_policy.unwrap_or_default().as_str().to_owned()),
        env: (!env.is_empty()).then_some(env),
        args: (!args.is_empty()).then_some(args),
        resources: operand.resources.clone(),
        // What a container says last is what the node's status says.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

/// A container of the probe's image, without any privilege: gates, guard and hold.
#[must_use]
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
            run_as_user: Some(NOBODY),
            run_as_group: Some(NOBODY),
            run_as_non_root: Some(true),
            ..unprivileged()
        }),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

/// No capability, no way to get one, a read-only root.
#[must_use]
pub fn unprivileged() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..SecurityContext::default()
    }
}

/// How a volume is mounted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Read-only.
    ReadOnly,
    /// Read-only, and what the host mounts below later on is seen.
    Follow,
    /// Writable.
    Writable,
    /// Writable, and what the host mounts below later on is seen.
    FollowWritable,
    /// Writable, and what the container mounts below is seen by the host. Needs a privileged container.
    Share,
}

/// A mount of a volume.
#[must_use]
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

/// A folder or file of the host.
#[must_use]
pub fn host_path(name: &str, path: &str, kind: Option<&str>) -> Volume {
    Volume {
        name: name.to_owned(),
        host_path: Some(HostPathVolumeSource { path: path.to_owned(), type_: kind.map(str::to_owned) }),
        ..Volume::default()
    }
}

/// A folder that comes and goes with the pod.
#[must_use]
pub fn empty_dir(name: &str) -> Volume {
    Volume { name: name.to_owned(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() }
}

/// An environment variable.
#[must_use]
pub fn env(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}
