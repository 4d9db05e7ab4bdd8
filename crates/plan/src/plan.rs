//! The plan: one pure function of (settings, catalogue, observed world, now), for the whole fleet at once. It lists
//! only what must be written, and nothing if the cluster is in the desired state.

use std::{collections::BTreeSet, sync::Arc};

use gpu_operator_crd::NodeName;
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{self, AssessedFleet},
    catalogue::Catalogue,
    clock::Clock,
    desired::{self, variant::Variants},
    ground::Ground,
    inventory::{self, records},
    memo::Memo,
    output::{self, write::Plan},
    quiet, rollout,
    settings::Settings,
    summary::Settled,
    world::World,
};

pub fn plan(settings: &Settings, catalogue: &Catalogue, world: &World, now: Timestamp) -> Plan {
    plan_by(settings, catalogue, world, &mut Memo::default(), now)
}

impl Memo {
    /// Returns the same plan as [`plan`], for which only nodes are planned that have changed since the last plan or are not settled.
    pub fn plan(&mut self, settings: &Settings, catalogue: &Catalogue, world: &World, now: Timestamp) -> Plan {
        let plan = plan_by(settings, catalogue, world, self, now);
        debug_assert_eq!(plan, plan_by(settings, catalogue, world, &mut Self::default(), now), "what is remembered");
        plan
    }
}

fn plan_by(settings: &Settings, catalogue: &Catalogue, world: &World, memo: &mut Memo, now: Timestamp) -> Plan {
    let clock = &Clock::at(now);
    let plan =
        if settings.quiets { quiet::plan(world, clock) } else { plan_fleet(settings, catalogue, world, memo, clock) };
    Plan { check_again: clock.next(), ..plan }
}

fn plan_fleet(settings: &Settings, catalogue: &Catalogue, world: &World, memo: &mut Memo, clock: &Clock) -> Plan {
    let world = &*records::with_confirmed_taints(world);
    let ground = &Ground::of(catalogue, world, &settings.namespace);
    let fleet = survey(settings, ground, world, memo, clock);
    let rollout = rollout::decide(&fleet, settings.evicts_pods, clock);
    let (plan, settled) = output::assemble(settings, &fleet, &rollout, clock);
    drop(rollout);
    let planned = fleet.unsettled(&world.nodes).count();
    memo.remember(settled, fleet.variants.to_remember(), planned, ground, world);
    plan
}

/// Assesses the nodes that are not settled, and all nodes of pools that do not rest.
fn survey<'w>(
    settings: &Settings,
    ground: &'w Ground<'w>,
    world: &'w World,
    memo: &mut Memo,
    clock: &Clock,
) -> AssessedFleet<'w> {
    let mut settled = memo.recall(settings, ground, world, clock);
    let mut variants = Variants::remembering(memo.take_variants());
    let mut take = |is_wanted: &dyn Fn(&NodeName) -> bool| {
        desired::resolve(inventory::take(ground, world, is_wanted), &mut variants, clock.now())
    };
    let mut fleet = take(&|node| !settled.contains(node));
    let restless = settled.take_restless(&fleet.governed, ground, world);
    if !restless.is_empty() {
        fleet.add(take(&|node| restless.contains(node)));
    }
    let settled = settled.into_nodes();
    let mut known = BTreeSet::new();
    for node in settled.iter().filter_map(Settled::member) {
        let Some(variant) = node.variant.as_ref().filter(|variant| known.insert(Arc::as_ptr(variant))) else {
            continue;
        };
        if let Some(pool) = ground.settings_of(&node.policy, &node.summary.pool) {
            variants.need(pool, variant);
        }
    }
    assess::assess(fleet, &settled, variants, clock)
}
