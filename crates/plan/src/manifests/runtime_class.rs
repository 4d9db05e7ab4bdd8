//! The RuntimeClass by which pods use NVIDIA's runtime.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{PolicyName, keys};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::core::ObjectMeta;

/// Returns a RuntimeClass that these policies use.
pub fn runtime_class(name: &str, policies: &BTreeSet<PolicyName>) -> RuntimeClass {
    let policies: Vec<&str> = policies.iter().map(PolicyName::as_str).collect();
    let annotations = [(keys::APPLIED, name.to_owned()), (keys::POLICIES, policies.join(","))];
    RuntimeClass {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([(keys::MANAGED_BY.to_owned(), keys::MANAGER.to_owned())])),
            annotations: Some(annotations.map(|(key, value)| (key.to_owned(), value)).into()),
            ..ObjectMeta::default()
        },
        handler: name.to_owned(),
        ..RuntimeClass::default()
    }
}
