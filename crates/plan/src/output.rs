//! The writes of a plan: labels, DaemonSets, GpuNodes, policies' statuses and Events.

pub mod context;
pub mod counted;
pub mod daemon_sets;
pub mod drift;
pub mod events;
pub mod gfd;
pub mod gpu_node;
pub mod headline;
pub mod leavers;
pub mod merge_notes;
pub mod node;
pub mod node_conditions;
pub mod node_health;
pub mod node_labels;
pub mod offered_resources;
pub mod plan;
pub mod policy;
pub mod policy_conditions;
pub mod policy_nodes;
pub mod published_labels;
pub mod queries;
pub mod runtime_classes;
pub mod stale_gpu_nodes;
pub mod status_debounce;
pub mod unmanaged;
pub mod validation_pods;
pub mod writes;

use gpu_operator_crd::PolicyName;
use std::{collections::BTreeMap, sync::Arc};

use context::Context;
use k8s_openapi::jiff::Timestamp;
use plan::Plan;

use crate::{
    assess::AssessedFleet,
    rollout::{Rollout, recreate_pods},
    settings::Settings,
};

/// Puts the plan together.
#[must_use]
pub fn assemble<'f>(
    settings: &'f Settings,
    fleet: &'f AssessedFleet<'f>,
    rollout: &'f Rollout<'f>,
    model_conflicts: &'f BTreeMap<PolicyName, String>,
    now: Timestamp,
) -> Plan {
    let world = fleet.world;
    let models = fleet.members().filter_map(|assessed| assessed.member.model().map(str::to_owned)).collect();
    let debounce = status_debounce::debounce_by_policy(world.gpu_nodes.values().map(Arc::as_ref), now);
    let (mut plan, leavers) = unmanaged::writes(world, &fleet.unmanaged, now);
    let context = Context { settings, fleet, rollout, model_conflicts, models, debounce, leavers, now };
    for policy in world.policies.values() {
        plan.merge(policy_nodes::writes(&context, policy));
    }
    let sets = daemon_sets::writes(&context, &plan.labels);
    (plan.daemon_sets, plan.prune) = (sets.apply, sets.prune);
    stale_gpu_nodes::remove(&mut plan, world, now);
    plan.merge(runtime_classes::writes(world, fleet.variants.all()));
    plan.delete_pods.extend(validation_pods::to_delete(fleet));
    plan.delete_pods.extend(recreate_pods::pods_to_recreate(world, now));
    plan
}
