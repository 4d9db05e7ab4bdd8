//! The RuntimeClass by which pods use NVIDIA's runtime.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::keys;
use k8s_openapi::{api::node::v1::RuntimeClass, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::core::ObjectMeta;

/// Returns a RuntimeClass that these policies own. They share it, so none of them is its controller.
#[must_use]
pub fn runtime_class(name: &str, owners: &BTreeSet<String>, live: &BTreeMap<String, OwnerReference>) -> RuntimeClass {
    RuntimeClass {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([(keys::MANAGED_BY.to_owned(), keys::MANAGER.to_owned())])),
            annotations: Some(BTreeMap::from([(keys::APPLIED.to_owned(), name.to_owned())])),
            owner_references: Some(owners.iter().filter_map(|uid| live.get(uid).cloned()).collect()),
            ..ObjectMeta::default()
        },
        handler: name.to_owned(),
        ..RuntimeClass::default()
    }
}
