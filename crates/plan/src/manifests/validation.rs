//! The pod that tests a GPU of a node.

use std::collections::BTreeMap;

use gpu_operator_crd::keys;
use k8s_openapi::{
    api::core::v1::{Container, EnvVar, Pod, PodSpec, ResourceRequirements, SecurityContext},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    assess::{
        member::Member,
        validation_test::{image, is_the_users},
    },
    container_names::VALIDATION,
    desired::device_plugin::choice::PluginChoice,
    manifests::{
        device_plugin::gke::DRIVER_IN_CONTAINER,
        one_off::{self, OneOff},
        pod,
    },
    settings::{Settings, VALIDATION_TIMEOUT},
};

/// The longest deadline of a pod in Kubernetes, in seconds.
const LONGEST: i64 = i32::MAX as i64;

/// Returns the pod. The scheduler places it, so it gets a GPU only if one is free.
pub fn pod(settings: &Settings, member: &Member<'_>, name: String) -> Pod {
    let policy = member.policy;
    let validation = &policy.spec.readiness.validation;
    let timeout = validation.timeout.map_or(VALIDATION_TIMEOUT, Into::into);
    let (node, stage) = (&member.node.name, keys::VALIDATION);
    let of = OneOff { settings, policy, pool: member.pool.named, node, stage };
    let spec = PodSpec {
        runtime_class_name: runtime_class(member),
        active_deadline_seconds: Some(i64::try_from(timeout.as_secs()).unwrap_or(LONGEST).clamp(1, LONGEST)),
        containers: vec![container(member)],
        ..PodSpec::default()
    };
    one_off::pod(of, name, spec)
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
