//! The plan: one pure function of (settings, catalogue, observed world, now), for the whole fleet at once. It lists
//! what is to be written, and nothing where all is as it should be.

use k8s_openapi::jiff::Timestamp;

use crate::{
    assess,
    catalogue::Catalogue,
    desired,
    inventory::{self, added_models},
    output::{self, plan::Plan},
    rollout,
    settings::Settings,
    world::World,
};

/// Plans for the whole fleet.
#[must_use]
pub fn plan(settings: &Settings, catalogue: &Catalogue, world: &World, now: Timestamp) -> Plan {
    let models = added_models::of(catalogue, world);
    let inventory = inventory::take(models.catalogue(), world);
    let desired = desired::resolve(inventory);
    let assessed = assess::assess(desired, now);
    let rollout = rollout::decide(&assessed, now);
    output::assemble(settings, &assessed, &rollout, &models.conflicts, now)
}
