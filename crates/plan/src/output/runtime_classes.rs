//! RuntimeClasses, by which pods use NVIDIA's runtime if it is added to the container runtime's configuration. They are
//! cluster-scoped, so all policies that need one share it; third-party RuntimeClasses are left unchanged.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::ClusterGpuPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use crate::{
    desired::{toolkit::choice::is_class_name, variant::Variant},
    manifests::runtime_class::runtime_class,
    output::plan::Plan,
    world::World,
};

/// Returns the writes of RuntimeClasses that are missing or differ from the desired ones, and of those of this operator whose
/// policies are gone. A policy that has needed one keeps it: pods may use it, and whether a policy can be applied to a node may
/// change.
#[must_use]
pub fn writes<'w>(world: &World, variants: impl Iterator<Item = (&'w ClusterGpuPolicy, &'w Variant)>) -> Plan {
    let mut plan = Plan::default();
    let live = world.policies.values().filter(|policy| policy.metadata.deletion_timestamp.is_none());
    let live: BTreeMap<String, OwnerReference> =
        live.filter_map(|policy| policy.owner_ref(&())).map(|owner| (owner.uid.clone(), owner)).collect();
    let mut wanted: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (policy, variant) in variants {
        if let Some(handler) = variant.key.toolkit.handler().filter(|handler| is_class_name(handler)) {
            wanted.entry(handler).or_default().extend(policy.uid());
        }
    }
    for (name, class) in world.runtime_classes.iter().filter(|(_, class)| class.managed) {
        let kept = class.owners.iter().filter(|uid| live.contains_key(*uid)).cloned();
        let owners = wanted.remove(name.as_str()).unwrap_or_default().into_iter().chain(kept);
        let owners: BTreeSet<String> = owners.collect();
        if owners.is_empty() {
            plan.prune_classes.insert(name.clone());
        } else if owners != class.owners {
            plan.runtime_classes.insert(name.clone(), runtime_class(name, &owners, &live));
        }
    }
    // The remaining ones are missing, or third-party.
    let missing = wanted.iter().filter(|(name, _)| !world.runtime_classes.contains_key(**name));
    let missing = missing.map(|(name, owners)| ((*name).to_owned(), runtime_class(name, owners, &live)));
    plan.runtime_classes.extend(missing);
    plan
}
