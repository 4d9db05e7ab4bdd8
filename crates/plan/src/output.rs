//! The writes of a plan: labels, DaemonSets, GpuNodes, policies' statuses and Events.

pub mod body;
pub mod daemon_sets;
pub mod events;
pub mod gfd;
pub mod gpu_node;
pub mod gpu_node_conditions;
pub mod headline;
pub mod node;
pub mod node_conditions;
pub mod node_labels;
pub mod node_taints;
pub mod one_off_pods;
pub mod policy;
pub mod policy_conditions;
pub mod policy_nodes;
pub mod presence;
pub mod runtime_classes;
pub mod settled;
pub mod summaries;
pub mod unmanaged;
pub mod urgency;
pub mod write;

use std::{collections::BTreeSet, sync::Arc};

use gpu_operator_crd::reason::Reason;

use policy_nodes::Context;
use write::Plan;
use write::Write;

use crate::{
    assess::AssessedFleet,
    clock::Clock,
    inventory::records::gpu_node_of,
    rollout::{Rollout, recreate_pods},
    settings::Settings,
    summary::Settled,
    world::{Concern, HeldWrite},
};

/// Also returns the settled nodes.
pub fn assemble<'f>(
    settings: &'f Settings,
    fleet: &'f AssessedFleet<'f>,
    rollout: &'f Rollout<'f>,
    clock: &Clock,
) -> (Plan, Vec<Settled>) {
    let world = fleet.world;
    let assessed = fleet.members().filter_map(|assessed| assessed.member.model());
    let of_settled =
        fleet.pools().flat_map(|pool| &pool.settled).filter_map(|settled| settled.summary.model.as_deref());
    let models: BTreeSet<&str> = assessed.chain(of_settled).collect();
    let mut plan = Plan::default();
    let (leavers, mut settled) = unmanaged::add(&mut plan, fleet, rollout, clock);
    let conflict = world.other_installation(&settings.namespace).map(|set| conflict(set, &settings.namespace));
    let context = Context { settings, fleet, rollout, models, leavers, conflict, clock };
    for policy in world.policies.values() {
        settled.extend(policy_nodes::add(&mut plan, &context, policy));
    }
    daemon_sets::add(&mut plan, settings, fleet);
    presence::remove_stale(&mut plan, fleet, clock);
    runtime_classes::add(&mut plan, world, fleet.variants.all().map(|(_, known)| &*known.variant));
    plan.writes.extend(one_off_pods::validation_pods_to_delete(fleet));
    plan.writes.extend(one_off_pods::preflight_pods_to_delete(rollout, world));
    for (name, node) in fleet.unsettled(&world.nodes) {
        let (gpu_node, pods) = (gpu_node_of(world, node), world.pods.on(name).map(Arc::as_ref).collect::<Vec<_>>());
        let pods = recreate_pods::pods_to_recreate(&world.daemon_sets, node, gpu_node, &pods, clock);
        plan.writes.extend(pods.map(Write::delete_pod));
    }
    // Both would place pods on the same nodes by the same labels.
    if context.conflict.is_some() {
        plan.writes.retain(Write::only_reports);
    }
    plan.sort();
    (plan, settled)
}

fn conflict(set: &str, own: &str) -> HeldWrite {
    let namespace = set.split('/').next().unwrap_or_default();
    let message = format!(
        "DaemonSet {set} belongs to an installation of this operator in namespace {namespace}, so the operator in namespace {own} changes \
         nothing on the nodes: install the chart in namespace {namespace} again and uninstall it from {own}, or delete the policies \
         there first"
    );
    HeldWrite { concerns: Concern::Fleet, reason: Reason::ManagerConflict, message }
}
