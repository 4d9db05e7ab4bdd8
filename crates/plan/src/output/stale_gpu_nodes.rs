//! GpuNodes that belong to no Node that exists. Kubernetes deletes a GpuNode together with the Node that owns it, but if the node is
//! still running, its probe may create the GpuNode again, without an owner.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::plan::Plan;
use crate::{inventory::report::belongs_to, settings::NODE_GRACE, time::later, world::World};

/// Returns the deletions of GpuNodes that have neither an owner nor a Node, or that belong to an earlier Node of the same name.
///
/// A GpuNode of a new node may be known before its Node, so one without a Node is deleted only after [`NODE_GRACE`], counted from
/// its creation by the API server's clock. If that clock differs from this one, a GpuNode is deleted later, or that of a new node
/// once in vain: its probe creates it again.
#[must_use]
pub fn writes(world: &World, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let existing = world.gpu_nodes.iter().filter(|(_, gpu_node)| gpu_node.metadata.deletion_timestamp.is_none());
    for (name, gpu_node) in existing {
        let (Some(uid), created) = (gpu_node.uid(), gpu_node.creation_timestamp()) else { continue };
        let due = match world.nodes.get(name) {
            Some(node) if belongs_to(gpu_node, node) => continue,
            Some(_) => now,
            None if gpu_node.owner_references().is_empty() => created.map_or(now, |at| later(at.0, NODE_GRACE)),
            None => continue,
        };
        if now >= due {
            plan.prune_gpu_nodes.insert(name.clone(), uid);
        } else {
            plan.check_again = plan.check_again.into_iter().chain([due]).min();
        }
    }
    plan
}
