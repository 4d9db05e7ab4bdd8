//! The label of nodes with GPUs, on which the chart's probe runs, and GpuNodes without a policy. The detector on every node creates the
//! GpuNode of a node with GPUs; the label then brings the probe there. It becomes `false` only if the probe reports that there is no GPU
//! since the boot. The GpuNode is deleted afterwards, so that the detector creates it again if a GPU appears.

use std::collections::BTreeSet;

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{GpuNode, GpuNodeSpec, keys};
use kube::ResourceExt;

use crate::{
    assess::AssessedFleet,
    clock::Clock,
    inventory::{KnownNode, UnmanagedNode, membership::Unmanaged, records::belongs_to},
    output::{
        body::{Body, Kind},
        gpu_node,
        write::{Plan, Write},
    },
    settings::NODE_GRACE,
    world::{NodeFacts, ObservedTime},
};

/// A node that has never had a GPU has no label.
pub fn write(node: &NodeFacts, is_wanted: bool) -> Option<Write> {
    let there = node.labels.get(keys::PRESENT).map(Interned::as_str);
    let is_missing = there.is_none() && is_wanted;
    let differs = there.is_some_and(|value| value != if is_wanted { "true" } else { "false" });
    (is_missing || differs).then(|| Write::new(&node.name, Body::Presence(is_wanted)))
}

#[derive(Debug)]
pub struct Presence {
    /// In their order.
    pub writes: Vec<Write>,
    /// Then nothing else is written for the node.
    pub is_deleted: bool,
}

impl Presence {
    /// `is_clean` is whether the node has nothing of this operator any more.
    pub fn of(unmanaged: &UnmanagedNode<'_>, is_clean: bool) -> Self {
        let is_wanted = match unmanaged.why {
            Unmanaged::NoGpu | Unmanaged::Unreported => of_unknown(unmanaged, is_clean),
            Unmanaged::NoPolicy | Unmanaged::OptedOut => true,
        };
        let deletion = deletion(unmanaged, is_clean).filter(|_| unmanaged.why == Unmanaged::NoGpu);
        let is_deleted = deletion.is_some();
        let writes = [write(unmanaged.node, is_wanted), creation(unmanaged), deletion];
        Self { writes: writes.into_iter().flatten().collect(), is_deleted }
    }
}

/// The label is `true` from the detection of a GPU until the probe has reported that there is none, and while only the probe can release
/// something. A report of an earlier boot counts as a detection, because the detector does not report again while the GpuNode exists.
fn of_unknown(known: &KnownNode<'_>, is_clean: bool) -> bool {
    if !known.node.has_linux_host() {
        return false;
    }
    let is_labelled = known.node.is_labelled_present();
    match known.report {
        Some(_) => !is_clean && is_labelled,
        None => is_labelled || known.gpu_node.is_some(),
    }
}

/// Creates a deleted GpuNode of a node with the label: the probe creates it only if the node has a GPU, and reports that there is none only
/// to one that exists.
fn creation(known: &KnownNode<'_>) -> Option<Write> {
    let is_missing = known.gpu_node.is_none() && known.node.is_labelled_present();
    let write = gpu_node::spec_write(None, known.node, GpuNodeSpec::default()).filter(|_| is_missing)?;
    Some(Write::new(&known.node.name, Body::Spec(Box::new(write))))
}

/// Deletes the GpuNode of a node without GPUs, once nothing of this operator is left there and the label records that.
fn deletion(known: &KnownNode<'_>, is_clean: bool) -> Option<Write> {
    let is_over = |gpu_node: &&GpuNode| gpu_node.metadata.deletion_timestamp.is_none();
    let gone = is_clean && known.report.is_some() && known.node.is_labelled_absent();
    let uid = known.gpu_node.filter(|_| gone).filter(is_over).and_then(ResourceExt::uid)?;
    Some(Write { body: Body::Delete(Some(uid)), ..Write::delete(Kind::GpuNode, known.node.name.as_str()) })
}

// Kubernetes deletes a GpuNode together with the Node that owns it, but if the node is still running, its probe may create the GpuNode
// again, without an owner.

/// Deletes GpuNodes that have neither an owner nor a Node, or that belong to an earlier Node of the same name. While one may belong to an
/// earlier Node, nothing that would become part of it is written, and so no labels, which it has to record. Conditions and taints stay too:
/// the health in such a report may be that of another machine, and no record would name the policy whose finalizer waits for their removal.
/// [`NODE_GRACE`] is counted from the creation by the API server's clock: if that differs, a GpuNode is deleted later, or once in vain.
pub fn remove_stale(plan: &mut Plan, fleet: &AssessedFleet<'_>, clock: &Clock) {
    let world = fleet.world;
    let mut uncertain: BTreeSet<&str> = BTreeSet::new();
    for (name, gpu_node) in fleet.unsettled(&world.gpu_nodes) {
        let created = gpu_node.creation_timestamp().map(|created| created.0);
        let is_ownerless = gpu_node.owner_references().is_empty();
        let is_due = || created.is_none_or(|created| clock.passed(created, NODE_GRACE));
        let is_stale = match world.nodes.get(name) {
            Some(node) if belongs_to(gpu_node, node) => continue,
            // The next report shows whether its kubelet has not reported a reboot yet, or the probe of an earlier Node is still
            // running. No probe outlives its Node for long.
            Some(node) if is_ownerless && created >= node.created.map(ObservedTime::reported) => {
                if !is_due() {
                    uncertain.insert(name.as_str());
                }
                continue;
            }
            Some(_) => {
                uncertain.insert(name.as_str());
                true
            }
            // It may be that of a new node, which is known before its Node.
            None if is_ownerless => is_due(),
            // Kubernetes deletes it.
            None => continue,
        };
        let Some(uid) = gpu_node.uid().filter(|_| gpu_node.metadata.deletion_timestamp.is_none()) else { continue };
        if is_stale {
            plan.writes.push(Write { body: Body::Delete(Some(uid)), ..Write::delete(Kind::GpuNode, name.as_str()) });
        }
    }
    let is_part_of_it = |body: &Body| matches!(body, Body::Spec(_) | Body::Status(_) | Body::Labels(_));
    let is_health = |body: &Body| matches!(body, Body::Conditions(_) | Body::Taints(_));
    let depends_on_it = |body: &Body| is_part_of_it(body) || is_health(body);
    plan.writes.retain(|write| !(depends_on_it(&write.body) && uncertain.contains(write.target.name.as_str())));
}
