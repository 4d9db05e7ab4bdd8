//! The variants in use. Each is resolved once for all nodes that share it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use gpu_operator_crd::{ClusterGpuPolicy, PolicyName, policy::Pool};

use super::{
    key::VariantKey,
    variant::{self, Variant},
};

/// The variants in use.
#[derive(Debug, Default)]
pub struct Variants<'w> {
    by_policy: HashMap<PolicyName, BTreeMap<VariantKey, Arc<Variant>>>,
    policies: BTreeMap<PolicyName, &'w ClusterGpuPolicy>,
}

impl<'w> Variants<'w> {
    /// Returns the variant of a key, resolved for the first node that has it.
    pub fn resolve(&mut self, policy: &'w ClusterGpuPolicy, pool: Option<&Pool>, key: VariantKey) -> Arc<Variant> {
        self.policies.insert(key.policy.clone(), policy);
        let of_policy = self.by_policy.entry(key.policy.clone()).or_default();
        Arc::clone(of_policy.entry(key).or_insert_with_key(|key| Arc::new(variant::resolve(policy, pool, key.clone()))))
    }

    /// Returns every variant in use, with its policy.
    pub fn all(&self) -> impl Iterator<Item = (&'w ClusterGpuPolicy, &Variant)> {
        self.by_policy
            .iter()
            .filter_map(|(policy, variants)| Some((*self.policies.get(policy)?, variants)))
            .flat_map(|(policy, variants)| variants.values().map(move |variant| (policy, variant.as_ref())))
    }
}
