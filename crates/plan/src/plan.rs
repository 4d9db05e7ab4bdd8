//! The plan: one pure function of (settings, catalogue, observed world, now), for the whole fleet at once. It lists
//! only what must be written, and nothing if the cluster is in the desired state.

use k8s_openapi::jiff::Timestamp;

use crate::{
    assess,
    catalogue::Catalogue,
    desired,
    ground::Ground,
    inventory::{self, records},
    output::{self, write::Plan},
    quiet, rollout,
    settings::Settings,
    world::World,
};

pub fn plan(settings: &Settings, catalogue: &Catalogue, world: &World, now: Timestamp) -> Plan {
    if settings.quiets {
        return quiet::plan(world, now);
    }
    let world = &*records::with_confirmed_taints(world);
    let ground = Ground::of(catalogue, world, &settings.namespace);
    let fleet = inventory::take(&ground, world);
    let (fleet, variants) = desired::resolve(fleet, now);
    let assessed = assess::assess(fleet, variants, now);
    let rollout = rollout::decide(&assessed, settings.evicts_pods, now);
    output::assemble(settings, &assessed, &rollout, now)
}
