//! Models that policies add to the catalogue of one plan.

use std::{borrow::Cow, collections::BTreeMap};

use gpu_operator_crd::PolicyName;

use super::membership::{by_precedence, name_of};
use crate::{catalogue::Catalogue, world::World};

/// The catalogue with the models that policies add.
#[derive(Debug)]
pub struct AddedModels<'c> {
    catalogue: Cow<'c, Catalogue>,
    /// Why a policy's models cannot be added, by policy name.
    pub conflicts: BTreeMap<PolicyName, String>,
}

impl AddedModels<'_> {
    /// Returns the catalogue that applies to the fleet.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }
}

/// Returns the catalogue with the models of all policies, added in the order of the policies' precedence.
pub fn of<'c>(catalogue: &'c Catalogue, world: &World) -> AddedModels<'c> {
    let mut added = AddedModels { catalogue: Cow::Borrowed(catalogue), conflicts: BTreeMap::new() };
    for policy in by_precedence(world) {
        for model in &policy.spec.models {
            if let Err(conflict) = added.catalogue.to_mut().add(model) {
                added.conflicts.entry(name_of(policy)).or_insert_with(|| conflict.to_string());
            }
        }
    }
    added
}
