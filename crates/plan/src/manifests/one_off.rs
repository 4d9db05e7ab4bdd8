//! Pods on one node, without a DaemonSet, that validate it or pull images.

use std::collections::BTreeMap;

use gpu_operator_crd::{NodeName, keys};
use k8s_openapi::{
    api::core::v1::{
        Affinity, Container, EnvVar, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
        PodSpec, ResourceRequirements, SecurityContext, Toleration,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::Resource;

use crate::{
    assess::{
        member::Member,
        validation::{is_users_image, test_image},
    },
    container_names::VALIDATION,
    desired::device_plugin::PluginChoice,
    manifests::{
        device_plugin::gke::DRIVER_IN_CONTAINER,
        pod::{self, env, unprivileged},
    },
    pool_settings::PoolSettings,
    rollout::preflight::{NewImage, PreflightPod},
    settings::{Settings, VALIDATION_TIMEOUT},
};

#[derive(Clone, Copy, Debug)]
struct OneOff<'a> {
    settings: &'a Settings,
    pool: &'a PoolSettings<'a>,
    node: &'a NodeName,
    /// The value of [`keys::STAGE`].
    stage: &'a str,
}

/// Returns a pod that ends by itself, on its node only. It never preempts.
fn one_off_pod(of: OneOff<'_>, name: String, spec: PodSpec) -> Pod {
    let OneOff { settings, pool, node, stage } = of;
    let labels = BTreeMap::from([
        (keys::STAGE.to_owned(), stage.to_owned()),
        (keys::POLICY.to_owned(), pool.policy.meta().name.clone().unwrap_or_default()),
        (keys::MANAGED_BY.to_owned(), keys::MANAGER.to_owned()),
    ]);
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(settings.namespace.clone()),
            labels: Some(labels),
            owner_references: pool.policy.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            affinity: Some(only_on(node)),
            tolerations: Some(tolerations(pool)),
            priority_class_name: Some(keys::VALIDATION_PRIORITY.to_owned()),
            image_pull_secrets: pod::pull_secrets(settings, pool.policy),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            restart_policy: Some("Never".to_owned()),
            // It has nothing to clean up.
            termination_grace_period_seconds: Some(1),
            ..spec
        }),
        status: None,
    }
}

/// Like that of the DaemonSet controller.
fn only_on(node: &NodeName) -> Affinity {
    let field = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_string()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![field]), ..NodeSelectorTerm::default() };
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector { node_selector_terms: vec![term] }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}

/// Includes a toleration of a cordon, like pods of the DaemonSet controller.
fn tolerations(pool: &PoolSettings<'_>) -> Vec<Toleration> {
    let mut tolerations = pool.tolerations.clone();
    tolerations.push(Toleration {
        key: Some("node.kubernetes.io/unschedulable".to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    });
    tolerations
}

/// The containers do nothing: what counts is that kubelet has pulled their images.
pub fn preflight_pod(settings: &Settings, pool: &PoolSettings<'_>, name: String, wanted: &PreflightPod) -> Pod {
    let of = OneOff { settings, pool, node: &wanted.node, stage: keys::PREFLIGHT };
    let containers = wanted.images.iter().map(pulling_container).collect();
    one_off_pod(of, name, PodSpec { containers, ..PodSpec::default() })
}

fn pulling_container(NewImage { container, image, pull_policy }: &NewImage) -> Container {
    Container {
        name: container.clone(),
        image: Some(image.clone()),
        image_pull_policy: pull_policy.clone(),
        // Not every image contains it.
        command: Some(vec!["/bin/true".to_owned()]),
        // NVIDIA's runtime must not add a driver that may be about to be replaced.
        env: Some(vec![env("NVIDIA_VISIBLE_DEVICES", "void")]),
        security_context: Some(unprivileged()),
        ..Container::default()
    }
}

/// The longest deadline in Kubernetes, in seconds.
const LONGEST_DEADLINE: i64 = i32::MAX as i64;

/// The scheduler places the pod, so it gets a GPU only if one is free.
pub fn validation_pod(settings: &Settings, member: &Member<'_>, name: String) -> Pod {
    let validation = &member.policy.spec.readiness.validation;
    let timeout = validation.timeout.map_or(VALIDATION_TIMEOUT, Into::into);
    let (node, stage) = (&member.node.name, keys::VALIDATION);
    let of = OneOff { settings, pool: member.pool.settings, node, stage };
    let spec = PodSpec {
        runtime_class_name: runtime_class(member),
        active_deadline_seconds: Some(
            i64::try_from(timeout.as_secs()).unwrap_or(LONGEST_DEADLINE).clamp(1, LONGEST_DEADLINE),
        ),
        containers: vec![validation_container(member)],
        ..PodSpec::default()
    };
    one_off_pod(of, name, spec)
}

/// Only if containers get GPUs by NVIDIA's runtime, and it is not the default.
fn runtime_class(member: &Member<'_>) -> Option<String> {
    member.toolkit()?.class_to_name().map(str::to_owned)
}

/// Google's plugin mounts the driver's libraries and sets no variable.
fn handed_over(member: &Member<'_>) -> Option<Vec<EnvVar>> {
    let key = &member.target.variant()?.key;
    let google = key.driver.is_a_folder() && !matches!(key.plugin, PluginChoice::Nvidia { .. });
    // A user's image sets its own path.
    (google && !is_users_image(member)).then(|| vec![env("LD_LIBRARY_PATH", &format!("{DRIVER_IN_CONTAINER}/lib64"))])
}

fn validation_container(member: &Member<'_>) -> Container {
    let resource = member.requestable_name();
    Container {
        name: VALIDATION.to_owned(),
        image: Some(test_image(member)),
        image_pull_policy: Some(member.policy.spec.images.pull_policy.unwrap_or_default().as_str().to_owned()),
        env: handed_over(member),
        resources: Some(ResourceRequirements {
            limits: Some(BTreeMap::from([(resource.to_owned(), Quantity("1".to_owned()))])),
            ..ResourceRequirements::default()
        }),
        // The end of the test's output is shown in the node's message.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        // The root stays writable, because hooks of some runtimes create the driver's libraries there.
        security_context: Some(SecurityContext { read_only_root_filesystem: None, ..unprivileged() }),
        ..Container::default()
    }
}
