//! The policies by precedence, the settings of their pools, and the catalogue with the models that they add.

use std::{borrow::Cow, cmp::Reverse, collections::BTreeMap, sync::Arc};

use gpu_operator_crd::{ClusterGpuPolicy, PolicyName};
use kube::ResourceExt;

use crate::{catalogue::Catalogue, pool_settings::PoolSettings, world::World};

/// Returns the policies that are not being deleted: the first that selects a node governs it. A restored backup, or a policy that a `GitOps`
/// engine creates again, changes the age of a policy but not its priority.
pub fn by_precedence(world: &World) -> Vec<&ClusterGpuPolicy> {
    let mut policies: Vec<_> = world
        .policies
        .values()
        .map(Arc::as_ref)
        .filter(|policy| policy.metadata.deletion_timestamp.is_none())
        .collect();
    policies.sort_by_key(|policy| (Reverse(policy.spec.priority), policy.creation_timestamp(), policy.name_any()));
    policies
}

#[derive(Debug)]
pub struct PolicyPools<'w> {
    pub policy: &'w ClusterGpuPolicy,
    /// In the order of the policy: the first that matches a node has it.
    pub named: Vec<PoolSettings<'w>>,
    /// The settings of the implicit pools of models.
    pub implicit: PoolSettings<'w>,
}

impl<'w> PolicyPools<'w> {
    pub fn of(policy: &'w ClusterGpuPolicy) -> Self {
        let settings = |pool| PoolSettings::of(policy, pool);
        let named = policy.spec.pools.iter().map(|pool| settings(Some(pool))).collect();
        Self { policy, named, implicit: settings(None) }
    }
}

#[derive(Debug)]
pub struct AddedModels<'c> {
    pub catalogue: Cow<'c, Catalogue>,
    /// Why a policy's models cannot be added.
    pub conflicts: BTreeMap<PolicyName, String>,
}

impl<'c> AddedModels<'c> {
    /// Adds the models in the order of the policies, which is their precedence.
    pub fn of(catalogue: &'c Catalogue, policies: &[&ClusterGpuPolicy]) -> Self {
        let mut added = Self { catalogue: Cow::Borrowed(catalogue), conflicts: BTreeMap::new() };
        for policy in policies {
            for model in &policy.spec.models {
                if let Err(conflict) = added.catalogue.to_mut().add(model) {
                    let name = policy.name_any().as_str().into();
                    added.conflicts.entry(name).or_insert_with(|| conflict.to_string());
                }
            }
        }
        added
    }
}
