//! The writes of a plan: labels, DaemonSets, GpuNodes, policies' statuses and Events.

pub mod daemon_sets;
pub mod drift;
pub mod events;
pub mod gfd;
pub mod gpu_node;
pub mod merge_notes;
pub mod node;
pub mod node_health;
pub mod node_labels;
pub mod plan;
pub mod policy;
pub mod policy_conditions;
pub mod policy_nodes;
pub mod published_labels;
pub mod queries;
pub mod runtime_classes;
pub mod status_debounce;
pub mod unmanaged;
pub mod validation_pods;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use plan::Plan;

use crate::{
    assess::AssessedFleet,
    rollout::{Rollout, recreate_pods, toolkit_removal::Removals},
    settings::Settings,
};

/// The context of everything that one plan writes.
pub struct Context<'f> {
    /// The operator's settings.
    pub settings: &'f Settings,
    /// The fleet.
    pub fleet: &'f AssessedFleet<'f>,
    /// The decisions for its pools.
    pub rollout: &'f Rollout<'f>,
    /// Why a policy's models cannot be added, by policy name.
    pub model_conflicts: &'f BTreeMap<String, String>,
    /// The nodes' models, including those that are not in the catalogue.
    pub models: BTreeSet<String>,
    /// How long a transient phase of a node is kept in its status before the next one is written, by policy.
    pub debounce: HashMap<&'f str, Duration>,
    /// The time of the plan.
    pub now: Timestamp,
}

/// Returns the plan of all writes.
#[must_use]
pub fn assemble<'f>(
    settings: &'f Settings,
    fleet: &'f AssessedFleet<'f>,
    rollout: &'f Rollout<'f>,
    model_conflicts: &'f BTreeMap<String, String>,
    now: Timestamp,
) -> Plan {
    let world = fleet.world;
    let models = fleet.members().filter_map(|assessed| assessed.member.model().map(str::to_owned)).collect();
    let debounce = status_debounce::lulls(world.gpu_nodes.values().map(Arc::as_ref), now);
    let context = Context { settings, fleet, rollout, model_conflicts, models, debounce, now };
    let mut plan = Plan::default();
    let mut removals = Removals::of(world, now);
    for node in &fleet.unmanaged {
        unmanaged::write(&mut plan, &mut removals, node, now);
    }
    for policy in world.policies.values() {
        policy_nodes::write(&mut plan, &context, policy);
    }
    daemon_sets::write(&mut plan, settings, world, &fleet.variants);
    runtime_classes::write(&mut plan, world, fleet.variants.all());
    plan.renew.extend(validation_pods::to_delete(fleet));
    plan.renew.extend(recreate_pods::pods_to_renew(world, now));
    plan
}
