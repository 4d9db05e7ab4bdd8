//! RuntimeClasses, by which pods use NVIDIA's runtime. They are cluster-scoped, so all policies share them; third-party ones are left
//! unchanged.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{GpuNode, PolicyName, keys};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::{ResourceExt, core::ObjectMeta};

use crate::{
    desired::{key::VariantKey, toolkit::ToolkitChoice, variant::Variant},
    output::{
        body::{Body, Kind},
        write::{Plan, Write},
    },
    world::World,
};

/// Their names come from the reports of nodes.
const MAX_HOST_CLASSES: usize = 8;

/// Adds missing and changed RuntimeClasses, and deletes those whose policies are gone. A policy that has needed one keeps it, because pods
/// may use it.
pub fn add<'v>(plan: &mut Plan, world: &World, variants: impl Iterator<Item = &'v Variant>) {
    let apply = |name: &str, policies: &BTreeSet<PolicyName>| {
        Write::new(name, Body::RuntimeClass(Box::new(runtime_class(name, policies))))
    };
    let mut wanted = wanted(world, variants);
    for (name, class) in world.runtime_classes.iter().filter(|(_, class)| class.managed) {
        let kept = class.policies.iter().filter(|policy| keeps(world, policy)).cloned();
        let policies = wanted.remove(name.as_str()).unwrap_or_default().into_iter().chain(kept);
        let policies: BTreeSet<PolicyName> = policies.collect();
        if policies.is_empty() {
            plan.writes.push(Write::delete(Kind::RuntimeClass, name));
        } else if policies != class.policies || class.owned {
            plan.writes.push(apply(name, &policies));
        }
    }
    // The remaining ones are missing, or third-party.
    let missing = wanted.iter().filter(|(name, _)| !world.runtime_classes.contains_key(**name));
    plan.writes.extend(missing.map(|(name, policies)| apply(name, policies)));
}

/// Those for runtimes of hosts are bounded; the ones that a policy already has stay.
fn wanted<'v>(world: &World, variants: impl Iterator<Item = &'v Variant>) -> BTreeMap<&'v str, BTreeSet<PolicyName>> {
    let mut wanted: BTreeMap<&str, BTreeSet<PolicyName>> = BTreeMap::new();
    let mut of_hosts: BTreeMap<PolicyName, BTreeSet<&str>> = BTreeMap::new();
    for VariantKey { policy, toolkit, .. } in variants.map(|variant| &variant.key) {
        let Some(class) = toolkit.class() else { continue };
        if matches!(toolkit, ToolkitChoice::Host(_)) {
            of_hosts.entry(policy.clone()).or_default().insert(class);
        } else {
            wanted.entry(class).or_default().insert(policy.clone());
        }
    }
    for (policy, classes) in of_hosts {
        let has = |name: &str| world.runtime_classes.get(name).is_some_and(|class| class.policies.contains(&policy));
        let present = world.runtime_classes.keys().filter(|name| has(name)).count();
        let (known, new): (Vec<&str>, Vec<&str>) = classes.into_iter().partition(|class| has(class));
        let new = new.into_iter().take(MAX_HOST_CLASSES.saturating_sub(present));
        for class in known.into_iter().chain(new) {
            wanted.entry(class).or_default().insert(policy.clone());
        }
    }
    wanted
}

/// A policy keeps its RuntimeClasses until it is deleted and its last node has left: the API server rejects pods that name a missing
/// RuntimeClass. A policy that cannot be parsed has not been deleted.
fn keeps(world: &World, policy: &PolicyName) -> bool {
    match world.policies.get(policy) {
        Some(found) => found.metadata.deletion_timestamp.is_none() || is_in_use(world, policy),
        None => world.unreadable_policies.contains(policy),
    }
}

/// Whether a GpuNode or a DaemonSet refers to a policy; a GpuNode that cannot be parsed may.
pub fn is_in_use(world: &World, policy: &PolicyName) -> bool {
    let refers = |gpu_node: &GpuNode| {
        gpu_node.spec.policy.as_ref() == Some(policy) && world.nodes.contains_key(&gpu_node.name_any().into())
    };
    world.unreadable_gpu_nodes.iter().any(|name| world.nodes.contains_key(name))
        || world.gpu_nodes.values().any(|gpu_node| refers(gpu_node))
        || world.daemon_sets.values().any(|set| set.policy.as_ref() == Some(policy))
}

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
