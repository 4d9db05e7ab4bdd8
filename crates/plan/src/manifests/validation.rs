//! The pod that tests a GPU of a node.

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
        validation_test::{image, is_the_users},
    },
    container_names::VALIDATION,
    desired::device_plugin::choice::PluginChoice,
    manifests::{device_plugin::gke::DRIVER_IN_CONTAINER, pod},
    settings::{Settings, VALIDATION_TIMEOUT},
};

/// The longest deadline of a pod in Kubernetes, in seconds.
const LONGEST: i64 = i32::MAX as i64;

/// Returns the pod. The scheduler places it, only on this node, so it gets a GPU only if one is free.
#[must_use]
pub fn pod(settings: &Settings, member: &Member<'_>, name: String) -> Pod {
    let policy = member.policy;
    let validation = &policy.spec.readiness.validation;
    let timeout = validation.timeout.map_or(VALIDATION_TIMEOUT, Into::into);
    let labels = BTreeMap::from([
        (keys::STAGE.to_owned(), keys::VALIDATION.to_owned()),
        (keys::POLICY.to_owned(), policy.meta().name.clone().unwrap_or_default()),
        (keys::MANAGED_BY.to_owned(), keys::MANAGER.to_owned()),
    ]);
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(settings.namespace.clone()),
            labels: Some(labels),
            owner_references: policy.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            affinity: Some(only_on(&member.node.name)),
            tolerations: Some(tolerations(member)),
            priority_class_name: Some(keys::VALIDATION_PRIORITY.to_owned()),
            image_pull_secrets: pod::pull_secrets(settings, policy),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            restart_policy: Some("Never".to_owned()),
            runtime_class_name: runtime_class(member),
            active_deadline_seconds: Some(i64::try_from(timeout.as_secs()).unwrap_or(LONGEST).clamp(1, LONGEST)),
            // The test has nothing to clean up.
            termination_grace_period_seconds: Some(1),
            containers: vec![container(member)],
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// Returns the RuntimeClass of NVIDIA's runtime, if containers get GPUs by it and it is not the default.
fn runtime_class(member: &Member<'_>) -> Option<String> {
    member.toolkit()?.class_to_name().map(str::to_owned)
}

/// Returns the path of the driver's libraries for a test on a node with Google's plugin, which mounts them and sets no
/// variable.
fn handed_over(member: &Member<'_>) -> Option<Vec<EnvVar>> {
    let key = &member.desired.variant()?.key;
    let google = key.driver.is_a_folder() && !matches!(key.plugin, PluginChoice::Nvidia { .. });
    // A user's image sets its own path.
    (google && !is_the_users(member))
        .then(|| vec![pod::env("LD_LIBRARY_PATH", &format!("{DRIVER_IN_CONTAINER}/lib64"))])
}

fn container(member: &Member<'_>) -> Container {
    let resource = member.offered();
    Container {
        name: VALIDATION.to_owned(),
        image: Some(image(member)),
        image_pull_policy: Some(member.policy.spec.images.pull_policy.unwrap_or_default().as_str().to_owned()),
        env: handed_over(member),
        resources: Some(ResourceRequirements {
            limits: Some(BTreeMap::from([(resource.to_owned(), Quantity("1".to_owned()))])),
            ..ResourceRequirements::default()
        }),
        // The end of the test's output is shown in the node's message.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        // The root stays writable, because hooks of some runtimes create the driver's libraries there.
        security_context: Some(SecurityContext { read_only_root_filesystem: None, ..pod::unprivileged() }),
        ..Container::default()
    }
}

/// Returns an affinity for one node, like that of the DaemonSet controller.
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

/// Returns the operands' tolerations, and one of a cordon, which the DaemonSet controller adds to its pods.
fn tolerations(member: &Member<'_>) -> Vec<Toleration> {
    let mut tolerations = pod::tolerations(member.policy, member.pool.named);
    tolerations.push(Toleration {
        key: Some("node.kubernetes.io/unschedulable".to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    });
    tolerations
}
