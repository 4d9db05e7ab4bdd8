//! The writes for a node that no policy governs.

use gpu_operator_crd::{GpuNodeSpec, GpuNodeStatus, keys};
use k8s_openapi::jiff::Timestamp;

use super::{
    gpu_node::{self, GpuNodeWrite},
    node_health, node_labels,
    plan::Plan,
};
use crate::{
    inventory::UnmanagedNode,
    rollout::{driver_removal, toolkit_removal::Removals},
};

/// Returns the writes for a node that no policy governs, which may still have pods of this operator: everything is
/// removed, except a toolkit whose removal is pending, and a driver until no other pod of this operator uses it.
pub fn writes<'w>(removals: &mut Removals<'w>, unmanaged: &UnmanagedNode<'w>, now: Timestamp) -> Plan {
    let UnmanagedNode { node, gpu_node, report, ref pods, why, ref model, .. } = *unmanaged;
    let status = gpu_node.map(|gpu_node| gpu_node::unmanaged_status(gpu_node, node, why, model.clone(), now));
    let since = status.as_ref().and_then(GpuNodeStatus::since);
    let driver = since.and_then(|since| driver_removal::kept_by(node, pods, report, since, now));
    let kept = [(keys::DRIVER, driver), (keys::TOOLKIT, removals.kept_by(node))];
    let kept: Vec<_> = kept.into_iter().filter_map(|(key, kept)| Some((key, kept?))).collect();
    let mut plan = Plan { check_again: kept.iter().map(|(_, (_, until))| *until).min(), ..Plan::default() };
    if let Some(write) = node_labels::none(node, kept.iter().map(|(key, (group, _))| (*key, group))).write {
        plan.labels.insert(node.name.clone(), write);
    }
    let health = node_health::none(node);
    if !health.is_empty() {
        plan.node_health.insert(node.name.clone(), health);
    }
    let (Some(gpu_node), Some(status)) = (gpu_node, status) else {
        return plan;
    };
    let spec = GpuNodeSpec { release_driver: driver_removal::needs_release(node, pods), ..GpuNodeSpec::default() };
    let spec = gpu_node::spec_write(Some(gpu_node), node, spec);
    let observed_generation = gpu_node::generation(Some(gpu_node), spec.as_ref());
    let status = GpuNodeStatus { observed_generation, ..status };
    let write = GpuNodeWrite { spec, status: gpu_node::status_write(Some(gpu_node), &status) };
    if !write.is_empty() {
        plan.gpu_nodes.insert(node.name.clone(), write);
    }
    plan
}
