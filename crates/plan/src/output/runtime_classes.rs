//! RuntimeClasses, by which pods use NVIDIA's runtime if it is added to the container runtime's configuration. They are
//! cluster-scoped, so all policies that need one share it; third-party RuntimeClasses are left unchanged.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, PolicyName};
use kube::ResourceExt;

use crate::{
    desired::{toolkit::choice::ToolkitChoice, variant::Variant},
    inventory::membership::name_of,
    manifests::runtime_class::runtime_class,
    output::{
        body::{Body, Kind},
        plan::Plan,
        write::Write,
    },
    world::World,
};

/// The most RuntimeClasses of one policy for runtimes that hosts have configured: their names come from the reports of nodes.
const MAX_HOST_CLASSES: usize = 8;

/// Adds the writes of RuntimeClasses that are missing or differ from the desired ones, and of those of this operator whose
/// policies are gone. A policy that has needed one keeps it: pods may use it, and whether a policy can be applied to a node may
/// change.
pub fn add<'w>(plan: &mut Plan, world: &World, variants: impl Iterator<Item = (&'w ClusterGpuPolicy, &'w Variant)>) {
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

/// Returns the RuntimeClasses that policies need. Those for runtimes of hosts are bounded, with those that the policy has needed
/// before: they stay.
fn wanted<'w>(
    world: &World,
    variants: impl Iterator<Item = (&'w ClusterGpuPolicy, &'w Variant)>,
) -> BTreeMap<&'w str, BTreeSet<PolicyName>> {
    let mut wanted: BTreeMap<&str, BTreeSet<PolicyName>> = BTreeMap::new();
    let mut of_hosts: BTreeMap<PolicyName, BTreeSet<&str>> = BTreeMap::new();
    for (policy, variant) in variants {
        let toolkit = &variant.key.toolkit;
        let Some(class) = toolkit.class() else { continue };
        if matches!(toolkit, ToolkitChoice::Host(_)) {
            of_hosts.entry(name_of(policy)).or_default().insert(class);
        } else {
            wanted.entry(class).or_default().insert(name_of(policy));
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

/// Returns whether a policy keeps the RuntimeClasses that it has needed: until it is deleted and its last node has left, because
/// the API server rejects pods that name a RuntimeClass that does not exist. A policy that cannot be parsed has not been deleted.
fn keeps(world: &World, policy: &PolicyName) -> bool {
    match world.policies.get(policy) {
        Some(found) => found.metadata.deletion_timestamp.is_none() || is_in_use(world, policy),
        None => world.unreadable_policies.contains(policy),
    }
}

/// Returns whether a GpuNode or a DaemonSet refers to a policy, or a GpuNode that cannot be parsed may.
pub fn is_in_use(world: &World, policy: &PolicyName) -> bool {
    let refers = |gpu_node: &GpuNode| {
        gpu_node.spec.policy.as_ref() == Some(policy) && world.nodes.contains_key(&gpu_node.name_any().into())
    };
    world.unreadable_gpu_nodes.iter().any(|name| world.nodes.contains_key(name))
        || world.gpu_nodes.values().any(|gpu_node| refers(gpu_node))
        || world.daemon_sets.values().any(|set| set.policy.as_ref() == Some(policy))
}
