//! The writes for a node that no policy governs.

use gpu_operator_crd::{GpuNodeSpec, GpuNodeStatus, NodeName, Revision, keys};
use k8s_openapi::jiff::Timestamp;

use super::{
    gpu_node::{self, GpuNodeWrite},
    leavers::Leavers,
    node_health, node_labels,
    plan::Plan,
};
use crate::{
    inventory::UnmanagedNode,
    rollout::{
        driver_removal,
        leaving::{self, Leaving},
        toolkit_removal::Removals,
    },
    world::World,
};

/// Returns the writes for the nodes that no policy governs, and which of them are leaving.
#[must_use]
pub fn writes(world: &World, fleet: &[UnmanagedNode<'_>], now: Timestamp) -> (Plan, Leavers) {
    let (mut plan, mut leavers) = (Plan::default(), Leavers::default());
    let mut removals = Removals::of(world, now);
    let mut unknown: Vec<&NodeName> = Vec::new();
    for unmanaged in fleet {
        let node = unmanaged.node;
        // A key that another manager keeps setting is removed as well, but must not block the deletion of a policy.
        let is_clean = node.owned_labels.is_empty() && node_health::none(node).is_empty();
        let leaving = Leaving::of(world, unmanaged, is_clean, now);
        if leaving == Leaving::Unknown {
            unknown.push(&node.name);
        }
        let status = unmanaged.gpu_node.map(|_| gpu_node::unmanaged_status(world, unmanaged, leaving, now));
        if !is_clean {
            leavers.add(unmanaged, status.as_ref());
        }
        plan.check_again = plan.check_again.into_iter().chain(leaving.check_again(now)).min();
        if !leaving.stays() {
            plan.merge(removal(&mut removals, unmanaged, leaving, status.as_ref(), now));
        }
        let write = status.map(|status| gpu_node_write(unmanaged, leaving, is_clean, status)).unwrap_or_default();
        if !write.is_empty() {
            plan.gpu_nodes.insert(node.name.clone(), write);
        }
    }
    let names = fleet.iter().map(|unmanaged| &unmanaged.node.name);
    plan.questions.gpu_pods.extend(leaving::to_ask(world, names, &unknown, now));
    (plan, leavers)
}

/// Returns the writes that remove everything from a Node, except what is still needed for the removal: a toolkit whose removal is
/// pending, and a driver until no other pod of this operator uses it.
fn removal<'w>(
    removals: &mut Removals<'w>,
    unmanaged: &UnmanagedNode<'w>,
    leaving: Leaving<'_>,
    status: Option<&GpuNodeStatus>,
    now: Timestamp,
) -> Plan {
    let UnmanagedNode { node, report, ref pods, .. } = *unmanaged;
    let group = |key: &str| node.labels.get(key).map(|group| (Revision::from(group.as_str()), now));
    let (driver, toolkit) = if leaving == Leaving::Closing {
        (group(keys::DRIVER), group(keys::TOOLKIT))
    } else {
        let since = status.and_then(GpuNodeStatus::since);
        let driver = since.and_then(|since| driver_removal::kept_by(node, pods, report, since, now));
        (driver, removals.kept_by(node))
    };
    let kept = [(keys::DRIVER, driver), (keys::TOOLKIT, toolkit)];
    let kept: Vec<_> = kept.into_iter().filter_map(|(key, kept)| Some((key, kept?))).collect();
    let until = kept.iter().map(|(_, (_, until))| *until).min().filter(|_| leaving != Leaving::Closing);
    let mut plan = Plan { check_again: until, ..Plan::default() };
    if let Some(write) = node_labels::none(node, kept.iter().map(|(key, (group, _))| (*key, group))).write {
        plan.labels.insert(node.name.clone(), write);
    }
    let health = node_health::none(node);
    if !health.is_empty() {
        plan.node_health.insert(node.name.clone(), health);
    }
    plan
}

/// Returns the writes to a GpuNode. It names the policy until its Node has nothing of this operator any more, because that policy's
/// finalizer waits for that.
fn gpu_node_write(
    unmanaged: &UnmanagedNode<'_>,
    leaving: Leaving<'_>,
    is_clean: bool,
    status: GpuNodeStatus,
) -> GpuNodeWrite {
    let UnmanagedNode { node, gpu_node, ref pods, .. } = *unmanaged;
    let before = gpu_node.map(|gpu_node| gpu_node.spec.clone()).unwrap_or_default();
    let spec = if is_clean {
        GpuNodeSpec { release_driver: driver_removal::needs_release(node, pods), ..GpuNodeSpec::default() }
    } else if leaving == Leaving::Unknown {
        before
    } else if leaving.stays() {
        // An update that has been interrupted goes on if the node is governed again.
        GpuNodeSpec { release_driver: before.release_driver && before.rollout.is_some(), ..before }
    } else {
        let release_driver = leaving == Leaving::Removing && driver_removal::needs_release(node, pods);
        GpuNodeSpec { rollout: None, release_driver, ..before }
    };
    let spec = gpu_node::spec_write(gpu_node, node, spec);
    let observed_generation = gpu_node::generation(gpu_node, spec.as_ref());
    let status = GpuNodeStatus { observed_generation, ..status };
    GpuNodeWrite { spec, status: gpu_node::status_write(gpu_node, &status) }
}
