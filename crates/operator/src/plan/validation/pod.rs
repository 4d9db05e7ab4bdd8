//! The pod that tests a GPU of a node.

use std::collections::BTreeMap;

use gpu_operator_common::version::Version;
use gpu_operator_crd::keys;
use k8s_openapi::{
    api::core::v1::{
        Affinity, Container, EnvVar, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
        PodSpec, ResourceRequirements, SecurityContext, Toleration,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::Resource;
use serde::Serialize;

use crate::{
    plan::{
        daemon_set,
        device_plugin::{DRIVER_IN_CONTAINER, PluginChoice},
        hash, images,
        member::Member,
    },
    settings::{Settings, VALIDATION_TIMEOUT},
};

/// A driver serves every CUDA of the major version that came with its branch, and the older ones. The newest first: the
/// first branch of a CUDA, and NVIDIA's vectorAdd built with it.
const TESTS: [(u32, &str); 2] = [(525, "vectoradd-cuda12.5.0"), (450, "vectoradd-cuda11.7.1")];
/// The container that tests.
pub const CONTAINER: &str = "test";
/// For the drivers before those.
const OLDEST_TEST: &str = "vectoradd-cuda10.2";
/// What Kubernetes takes of a pod's deadline, in seconds.
const LONGEST: i64 = i32::MAX as i64;

/// Whether the test is one of the user's, which we know nothing of.
#[must_use]
pub fn is_the_users(member: &Member<'_>) -> bool {
    member.policy.spec.readiness.validation.image.is_some()
}

/// The image of a node's test.
#[must_use]
pub fn image(member: &Member<'_>) -> String {
    let spec = &member.policy.spec;
    let loaded = member.report().and_then(|report| report.driver.loaded.as_deref());
    let tag = loaded.and_then(Version::leading).map_or(TESTS[0].1, |version| test_for(version.major()));
    images::reference(&spec.images, spec.readiness.validation.image.as_ref(), images::SAMPLES, tag)
}

fn test_for(branch: u32) -> &'static str {
    TESTS.into_iter().find(|(first, _)| branch >= *first).map_or(OLDEST_TEST, |(_, tag)| tag)
}

/// The name of the pod of a test: another test, and each new try, is another pod.
#[must_use]
pub fn name(of: &impl Serialize) -> String {
    format!("{}-{}", keys::VALIDATION, hash::short(of, 12))
}

/// The pod: placed by the scheduler, on this node alone, so that it takes a GPU only where one is free.
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
            image_pull_secrets: daemon_set::pull_secrets(settings, policy),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            restart_policy: Some("Never".to_owned()),
            runtime_class_name: runtime_class(member),
            active_deadline_seconds: Some(i64::try_from(timeout.as_secs()).unwrap_or(LONGEST).clamp(1, LONGEST)),
            // There is nothing that it could put in order.
            termination_grace_period_seconds: Some(1),
            containers: vec![container(member)],
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// The class of NVIDIA's runtime, where GPUs come by it and not every pod is run by it.
fn runtime_class(member: &Member<'_>) -> Option<String> {
    member.toolkit()?.class_to_name().map(str::to_owned)
}

/// Where the driver's libraries are for a test on a node with Google's plugin, which mounts them and sets nothing.
fn handed_over(member: &Member<'_>) -> Option<Vec<EnvVar>> {
    let key = &member.wanted.as_ref()?.as_ref().ok()?.key;
    let google = key.driver.is_a_folder() && !matches!(key.plugin, PluginChoice::Nvidia { .. });
    // An image of the user's knows its own way.
    (google && !is_the_users(member))
        .then(|| vec![daemon_set::env("LD_LIBRARY_PATH", &format!("{DRIVER_IN_CONTAINER}/lib64"))])
}

fn container(member: &Member<'_>) -> Container {
    let resource = member.offered();
    Container {
        name: CONTAINER.to_owned(),
        image: Some(image(member)),
        image_pull_policy: Some(member.policy.spec.images.pull_policy.unwrap_or_default().as_str().to_owned()),
        env: handed_over(member),
        resources: Some(ResourceRequirements {
            limits: Some(BTreeMap::from([(resource.to_owned(), Quantity("1".to_owned()))])),
            ..ResourceRequirements::default()
        }),
        // What the test prints last is what the node's message says.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        // Its root stays writable: some runtimes' hooks put the driver's libraries there.
        security_context: Some(SecurityContext { read_only_root_filesystem: None, ..daemon_set::unprivileged() }),
        ..Container::default()
    }
}

/// As the DaemonSet controller binds its pods to their nodes.
fn only_on(node: &str) -> Affinity {
    let field = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
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

/// What the operands tolerate, and a cordon, which the DaemonSet controller lets them tolerate.
fn tolerations(member: &Member<'_>) -> Vec<Toleration> {
    let mut tolerations = daemon_set::tolerations(member.policy);
    tolerations.push(Toleration {
        key: Some("node.kubernetes.io/unschedulable".to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    });
    tolerations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_is_built_with_a_cuda_that_the_driver_serves() {
        for (driver, tag) in [
            ("595.91.07", "vectoradd-cuda12.5.0"),
            ("525.60.13", "vectoradd-cuda12.5.0"),
            ("515.105.01", "vectoradd-cuda11.7.1"),
            ("470.256.02", "vectoradd-cuda11.7.1"),
            ("450.51.05", "vectoradd-cuda11.7.1"),
            ("440.33.01", "vectoradd-cuda10.2"),
            ("384.81", "vectoradd-cuda10.2"),
        ] {
            assert_eq!(Version::leading(driver).map(|version| test_for(version.major())), Some(tag), "{driver}");
        }
    }
}
