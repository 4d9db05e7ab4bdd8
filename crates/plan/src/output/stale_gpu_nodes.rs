//! GpuNodes that belong to no Node that exists. Kubernetes deletes a GpuNode together with the Node that owns it, but if the node is
//! still running, its probe may create the GpuNode again, without an owner.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::plan::Plan;
use crate::{inventory::report::belongs_to, settings::NODE_GRACE, time::later, world::World};

/// Adds the deletions of GpuNodes that have neither an owner nor a Node, or that belong to an earlier Node of the same name. While one
/// that does not belong to its Node exists, the plan writes nothing that would become part of it, and so no labels, which it has to
/// record.
///
/// One without an owner that is younger than its Node belongs to a machine whose reboot its kubelet has not reported, or to one
/// whose probe has not ended yet: the next report shows which. One without a Node may be that of a new node, which is known before
/// its Node, so it is deleted only after [`NODE_GRACE`], counted from its creation by the API server's clock. If that clock differs
/// from this one, it is deleted later, or once in vain: its probe creates it again.
pub fn remove(plan: &mut Plan, world: &World, now: Timestamp) {
    for (name, gpu_node) in &world.gpu_nodes {
        let created = gpu_node.creation_timestamp().map(|created| created.0);
        let is_ownerless = gpu_node.owner_references().is_empty();
        let due = match world.nodes.get(name) {
            Some(node) if belongs_to(gpu_node, node) => continue,
            Some(node) => {
                plan.gpu_nodes.remove(name);
                plan.labels.remove(name);
                if is_ownerless && created >= node.created {
                    continue;
                }
                now
            }
            None if is_ownerless => created.map_or(now, |created| later(created, NODE_GRACE)),
            // Kubernetes deletes it.
            None => continue,
        };
        let Some(uid) = gpu_node.uid().filter(|_| gpu_node.metadata.deletion_timestamp.is_none()) else { continue };
        if now >= due {
            plan.prune_gpu_nodes.insert(name.clone(), uid);
        } else {
            plan.check_again = plan.check_again.into_iter().chain([due]).min();
        }
    }
}
