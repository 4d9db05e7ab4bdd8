//! The plan: one pure function of (settings, catalogue, observed world, now), for the whole fleet at once. It lists
//! only what must be written, and nothing if the cluster is in the desired state.

use k8s_openapi::jiff::Timestamp;

use crate::{
    assess,
    catalogue::Catalogue,
    clock::Clock,
    desired,
    ground::Ground,
    inventory::{self, records},
    output::{self, write::Plan},
    quiet, rollout,
    settings::Settings,
    world::World,
};

pub fn plan(settings: &Settings, catalogue: &Catalogue, world: &World, now: Timestamp) -> Plan {
    let clock = &Clock::at(now);
    let plan = plan_by(settings, catalogue, world, clock);
    Plan { check_again: clock.next(), ..plan }
}

fn plan_by(settings: &Settings, catalogue: &Catalogue, world: &World, clock: &Clock) -> Plan {
    if settings.quiets {
        return quiet::plan(world, clock);
    }
    let world = &*records::with_confirmed_taints(world);
    let ground = Ground::of(catalogue, world, &settings.namespace);
    let fleet = inventory::take(&ground, world);
    let (fleet, variants) = desired::resolve(fleet, clock);
    let assessed = assess::assess(fleet, variants, clock);
    let rollout = rollout::decide(&assessed, settings.evicts_pods, clock);
    output::assemble(settings, &assessed, &rollout, clock)
}
