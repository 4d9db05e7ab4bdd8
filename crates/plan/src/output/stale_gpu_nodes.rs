//! GpuNodes that belong to no Node that exists. Kubernetes deletes a GpuNode together with the Node that owns it, but if the node is
//! still running, its probe may create the GpuNode again, without an owner.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::plan::Plan;
use crate::{inventory::report::belongs_to, settings::NODE_GRACE, time::later, world::World};

/// Adds the deletions of GpuNodes that have neither an owner nor a Node, or that belong to an earlier Node of the same name. While one
/// of an earlier Node exists, the plan writes nothing that would become part of it, and so no labels, which it has to record.
///
/// One without an owner may be that of a new node, which is known before its Node, or of a machine whose reboot its kubelet has not
/// reported. So it is deleted only after [`NODE_GRACE`], counted from the creation of the younger of the two by the API server's clock.
/// If that clock differs from this one, it is deleted later, or once in vain: its probe creates it again.
pub fn remove(plan: &mut Plan, world: &World, now: Timestamp) {
    for (name, gpu_node) in &world.gpu_nodes {
        let node = world.nodes.get(name);
        if node.is_some_and(|node| belongs_to(gpu_node, node)) {
            continue;
        }
        if node.is_some() {
            plan.gpu_nodes.remove(name);
            plan.labels.remove(name);
        }
        let is_ownerless = gpu_node.owner_references().is_empty();
        if gpu_node.metadata.deletion_timestamp.is_some() || node.is_none() && !is_ownerless {
            // Kubernetes deletes it.
            continue;
        }
        let created = gpu_node.creation_timestamp().map(|created| created.0);
        let created = created.into_iter().chain(node.and_then(|node| node.created)).max();
        let due = created.filter(|_| is_ownerless).map_or(now, |created| later(created, NODE_GRACE));
        if now < due {
            plan.check_again = plan.check_again.into_iter().chain([due]).min();
        } else if let Some(uid) = gpu_node.uid() {
            plan.prune_gpu_nodes.insert(name.clone(), uid);
        }
    }
}
