//! GpuNodes that belong to no Node that exists. Kubernetes deletes a GpuNode together with the Node that owns it, but if the node is
//! still running, its probe may create the GpuNode again, without an owner.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::{
    body::{Body, Kind},
    plan::Plan,
    write::Write,
};
use crate::{
    inventory::report::belongs_to,
    settings::NODE_GRACE,
    time::later,
    world::{ObservedTime, World},
};

/// Adds the deletions of GpuNodes that have neither an owner nor a Node, or that belong to an earlier Node of the same name. While one
/// may belong to an earlier Node, the plan writes nothing that would become part of it, and so no labels, which it has to record. It
/// does not change the Node's conditions and taints either, because the health in such a report may be that of another machine, and no
/// record would name the policy whose finalizer waits for their removal.
///
/// The times of [`NODE_GRACE`] are counted from the creation of the GpuNode by the API server's clock. If that clock differs from this
/// one, a GpuNode is deleted later, or once in vain: its probe creates it again.
pub fn remove(plan: &mut Plan, world: &World, now: Timestamp) {
    let mut uncertain: BTreeSet<&str> = BTreeSet::new();
    for (name, gpu_node) in &world.gpu_nodes {
        let created = gpu_node.creation_timestamp().map(|created| created.0);
        let is_ownerless = gpu_node.owner_references().is_empty();
        let grace = created.map_or(now, |created| later(created, NODE_GRACE));
        let due = match world.nodes.get(name) {
            Some(node) if belongs_to(gpu_node, node) => continue,
            // The next report shows whether its kubelet has not reported a reboot yet, or the probe of an earlier Node is still
            // running. No probe outlives its Node for long.
            Some(node) if is_ownerless && created >= node.created.map(ObservedTime::reported) => {
                if now < grace {
                    uncertain.insert(name.as_str());
                    plan.check([grace]);
                }
                continue;
            }
            Some(_) => {
                uncertain.insert(name.as_str());
                now
            }
            // It may be that of a new node, which is known before its Node.
            None if is_ownerless => grace,
            // Kubernetes deletes it.
            None => continue,
        };
        let Some(uid) = gpu_node.uid().filter(|_| gpu_node.metadata.deletion_timestamp.is_none()) else { continue };
        if now >= due {
            plan.writes.push(Write { body: Body::Delete(Some(uid)), ..Write::delete(Kind::GpuNode, name.as_str()) });
        } else {
            plan.check([due]);
        }
    }
    let is_part_of_it = |body: &Body| matches!(body, Body::Spec(_) | Body::Status(_) | Body::Labels(_));
    let is_health = |body: &Body| matches!(body, Body::Conditions(_) | Body::Taints(_));
    let depends_on_it = |body: &Body| is_part_of_it(body) || is_health(body);
    plan.writes.retain(|write| !(depends_on_it(&write.body) && uncertain.contains(write.target.name.as_str())));
}
