//! Models that policies add: the catalogue of one plan.

use std::{borrow::Cow, collections::BTreeMap};

use kube::ResourceExt;

use super::membership::by_age;
use crate::{catalogue::Catalogue, world::World};

/// The catalogue with what policies add to it.
#[derive(Debug)]
pub struct AddedModels<'c> {
    catalogue: Cow<'c, Catalogue>,
    /// What cannot be added, by policy.
    pub conflicts: BTreeMap<String, String>,
}

impl AddedModels<'_> {
    /// Returns the catalogue that holds for the fleet.
    #[must_use]
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }
}

/// Adds the models of all policies, the oldest policy's first.
#[must_use]
pub fn of<'c>(catalogue: &'c Catalogue, world: &World) -> AddedModels<'c> {
    let mut added = AddedModels { catalogue: Cow::Borrowed(catalogue), conflicts: BTreeMap::new() };
    for policy in by_age(world) {
        for model in &policy.spec.models {
            if let Err(conflict) = added.catalogue.to_mut().add(model) {
                added.conflicts.entry(policy.name_any()).or_insert_with(|| conflict.to_string());
            }
        }
    }
    added
}
