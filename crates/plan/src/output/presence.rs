//! The label of nodes with GPUs, on which the chart's probe runs. It does not depend on policies: nodes are known before the first one.
//!
//! The detector, which runs on every node, creates the GpuNode of a node with GPUs. The label then brings the probe there. It becomes
//! `false` only if the probe has reported since the node's boot that there is no GPU. The GpuNode is deleted afterwards, so that the
//! detector creates it again if a GPU appears.

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{GpuNode, GpuNodeSpec, keys};
use kube::ResourceExt;

use super::{
    body::{Body, Kind},
    gpu_node,
    write::Write,
};
use crate::{
    inventory::{KnownNode, UnmanagedNode, membership::Unmanaged},
    world::NodeFacts,
};

/// Returns the write of the label, if needed. A node that has never had a GPU has none.
pub fn write(node: &NodeFacts, is_wanted: bool) -> Option<Write> {
    let there = node.labels.get(keys::PRESENT).map(Interned::as_str);
    let is_missing = there.is_none() && is_wanted;
    let differs = there.is_some_and(|value| value != if is_wanted { "true" } else { "false" });
    (is_missing || differs).then(|| Write::new(&node.name, Body::Presence(is_wanted)))
}

/// What becomes of the label and the GpuNode of a node that no policy governs.
#[derive(Debug)]
pub struct Presence {
    /// The writes, in their order.
    pub writes: Vec<Write>,
    /// Whether the GpuNode is deleted, so that nothing else is written for the node.
    pub is_deleted: bool,
}

impl Presence {
    /// Returns the writes for a node. `is_clean` is whether the node has nothing of this operator any more.
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

/// Returns whether the label of a node on which no GPU is known should be `true`: from the detection of a GPU until its probe has reported
/// that there is none, and while the node still has something that only the probe can release. A GpuNode whose report is of an earlier boot
/// counts as a detection, because the detector does not report again while it exists.
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

/// Returns the creation of the GpuNode of a node with the label, if it was deleted: the probe creates it again only if the node has a GPU,
/// and reports that there is none only to one that exists.
fn creation(known: &KnownNode<'_>) -> Option<Write> {
    let is_missing = known.gpu_node.is_none() && known.node.is_labelled_present();
    let write = gpu_node::spec_write(None, known.node, GpuNodeSpec::default()).filter(|_| is_missing)?;
    Some(Write::new(&known.node.name, Body::Spec(Box::new(write))))
}

/// Returns the deletion of the GpuNode of a node without GPUs, once the node has nothing of this operator any more, and its label
/// records that it has none.
fn deletion(known: &KnownNode<'_>, is_clean: bool) -> Option<Write> {
    let is_over = |gpu_node: &&GpuNode| gpu_node.metadata.deletion_timestamp.is_none();
    let gone = is_clean && known.report.is_some() && known.node.is_labelled_absent();
    let uid = known.gpu_node.filter(|_| gone).filter(is_over).and_then(ResourceExt::uid)?;
    Some(Write { body: Body::Delete(Some(uid)), ..Write::delete(Kind::GpuNode, known.node.name.as_str()) })
}
