//! What the DaemonSets of all stages have in common: placement, gates, security, ownership.

use std::collections::BTreeMap;

use gpu_operator_crd::{ClusterGpuPolicy, keys, policy::Stage, report::CONTAINER_ROOT};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy},
        core::v1::{
            Affinity, Capabilities, Container, EmptyDirVolumeSource, EnvVar, HostPathVolumeSource,
            LocalObjectReference, PodAffinityTerm, PodAntiAffinity, PodSpec, PodTemplateSpec, ResourceRequirements,
            SeccompProfile, SecurityContext, Toleration, Volume, VolumeMount,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
    },
};
use kube::Resource;

use super::{
    device_plugin,
    driver::{self, DriverChoice},
    proxy, selinux, toolkit,
    variant::{StageSpec, Variant, VariantKey, daemon_set_name},
};
use crate::settings::Settings;

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

/// The DaemonSets of a variant, by name.
#[must_use]
pub fn daemon_sets(settings: &Settings, policy: &ClusterGpuPolicy, variant: &Variant) -> Vec<DaemonSet> {
    variant
        .stages
        .iter()
        .filter_map(|(group, spec)| {
            let input = PodInput { settings, policy, key: &variant.key, spec };
            let parts = match spec.stage {
                Stage::Driver => driver::pod(&input)?,
                Stage::Toolkit => toolkit::pod(&input)?,
                Stage::Mps => device_plugin::mps_pod(&input)?,
                Stage::DevicePlugin => device_plugin::pod(&input)?,
            };
            let mut set = daemon_set(&input, group, parts);
            if spec.stage == Stage::DevicePlugin {
                let offer = variant.offer.annotation().map(|offer| (keys::OFFER.to_owned(), offer));
                set.metadata.annotations = offer.map(|offer| BTreeMap::from([offer]));
            }
            Some(set)
        })
        .collect()
}

fn daemon_set(input: &PodInput<'_>, group: &str, parts: PodParts) -> DaemonSet {
    let stage = input.spec.stage;
    let selector = BTreeMap::from([
        (keys::STAGE.to_owned(), stage.as_str().to_owned()),
        (stage.key().to_owned(), group.to_owned()),
    ]);
    let mut labels = selector.clone();
    labels.insert(keys::MANAGED_BY.to_owned(), keys::MANAGER.to_owned());
    labels.insert(keys::POLICY.to_owned(), input.policy.meta().name.clone().unwrap_or_default());
    DaemonSet {
        metadata: ObjectMeta {
            name: Some(daemon_set_name(stage, group)),
            namespace: Some(input.settings.namespace.clone()),
            labels: Some(labels.clone()),
            owner_references: owner(input),
            ..ObjectMeta::default()
        },
        spec: Some(DaemonSetSpec {
            selector: LabelSelector { match_labels: Some(selector.clone()), ..LabelSelector::default() },
            // A change of the template reaches a node when its pod is next made; what has to move nodes is a new
            // revision, and so a DaemonSet of its own.
            update_strategy: Some(DaemonSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                ..DaemonSetUpdateStrategy::default()
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec: Some(pod_spec(input, group, parts)),
            },
            ..DaemonSetSpec::default()
        }),
        ..DaemonSet::default()
    }
}

/// The policy, with which a DaemonSet goes. Not so a toolkit that is entered into the container runtime's configuration: with a
/// policy that is deleted in the foreground, as Argo CD does, the API server would have all of them go at once, also those
/// that restart the runtime as they go or cannot take themselves out yet. It is pruned in its turn.
fn owner(input: &PodInput<'_>) -> Option<Vec<OwnerReference>> {
    let in_turn = input.spec.stage == Stage::Toolkit && input.key.toolkit.setup().is_some();
    input.policy.controller_owner_ref(&()).filter(|_| !in_turn).map(|owner| vec![owner])
}

fn pod_spec(input: &PodInput<'_>, group: &str, mut parts: PodParts) -> PodSpec {
    let way_out = &input.policy.spec.proxy;
    let theirs = |container: &&mut Container| container.image.as_ref() == Some(&input.spec.image);
    for container in parts.init.iter_mut().chain([&mut parts.main]).filter(theirs) {
        proxy::tell(way_out, container);
    }
    parts.volumes.extend(proxy::volume(way_out));
    if input.key.host.selinux {
        selinux::allow_host_files(&mut parts);
    }
    let stage = input.spec.stage;
    let account = device_plugin::account(&input.key.plugin).filter(|_| stage == Stage::DevicePlugin);
    let defaults = &input.policy.spec.defaults;
    PodSpec {
        node_selector: Some(BTreeMap::from([(stage.key().to_owned(), group.to_owned())])),
        affinity: Some(one_per_host(stage)),
        tolerations: Some(tolerations(input.policy)),
        priority_class_name: Some(
            defaults.priority_class_name.clone().unwrap_or_else(|| "system-node-critical".to_owned()),
        ),
        image_pull_secrets: pull_secrets(input.settings, input.policy),
        // One operand alone talks to the API server, only if told to, and mounts the token itself.
        automount_service_account_token: Some(false),
        service_account_name: account.map(str::to_owned),
        host_pid: (parts.host != HostNamespaces::None).then_some(true),
        host_network: (parts.host == HostNamespaces::PidAndNetwork).then_some(true),
        termination_grace_period_seconds: Some(parts.grace_seconds),
        init_containers: (!parts.init.is_empty()).then_some(parts.init),
        containers: vec![parts.main],
        volumes: Some(parts.volumes),
        ..PodSpec::default()
    }
}

/// While a node moves from one revision to another, the new pod waits until the old one is gone.
fn one_per_host(stage: Stage) -> Affinity {
    let same_stage = LabelSelector {
        match_labels: Some(BTreeMap::from([(keys::STAGE.to_owned(), stage.as_str().to_owned())])),
        ..LabelSelector::default()
    };
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            required_during_scheduling_ignored_during_execution: Some(vec![PodAffinityTerm {
                label_selector: Some(same_stage),
                topology_key: "kubernetes.io/hostname".to_owned(),
                ..PodAffinityTerm::default()
            }]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
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

/// The gate of the later stages: waits until the wanted driver is loaded and its libraries are in place.
#[must_use]
pub fn driver_gate(input: &PodInput<'_>) -> Container {
    let root = input.key.driver.root();
    let mut args = vec!["wait", "driver", "--host-root", "/host", "--driver-root", root];
    if let Some(version) = input.key.driver.version() {
        args.extend(["--version", version]);
    }
    if matches!(input.key.driver, DriverChoice::Container { .. }) {
        args.extend(["--pid-file", driver::PID_FILE]);
    }
    let mounts = vec![
        mount("sys", "/host/sys", Mode::ReadOnly),
        mount("driver", format!("/host{}", driver_mount(root)).trim_end_matches('/'), Mode::Follow),
    ];
    own_container(input.settings, "wait-for-driver", &args, mounts)
}

/// The volumes of [`driver_gate`].
#[must_use]
pub fn driver_gate_volumes(input: &PodInput<'_>) -> Vec<Volume> {
    vec![
        host_path("sys", "/sys", None),
        host_path("driver", driver_mount(input.key.driver.root()), Some("DirectoryOrCreate")),
    ]
}

/// The folder to mount so that a driver root can be looked into: the one above a container's root, which comes and
/// goes as a mount. Of a host's own root it is all: where libraries are stands in its dynamic linker's files in /etc, and the
/// links there lead to /opt, /nix and anywhere. The gate reads what every user of the host may read.
fn driver_mount(root: &str) -> &str {
    match root {
        CONTAINER_ROOT => "/run/nvidia",
        other => other,
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
