//! What a GpuNode says about the present: a GpuNode belongs to one Node, and the probe's report to one boot of it.

use gpu_operator_crd::{GpuNode, Report};
use kube::ResourceExt;

use crate::world::{NodeFacts, World};

/// Returns the GpuNode of a Node. One that is owned by an earlier Node of the same name is about to be deleted with that Node, and
/// nothing in it applies to the new one.
#[must_use]
pub fn gpu_node_of<'w>(world: &'w World, node: &NodeFacts) -> Option<&'w GpuNode> {
    let gpu_node = world.gpu_nodes.get(&node.name)?;
    let owners = gpu_node.owner_references();
    (owners.is_empty() || owners.iter().any(|owner| owner.uid == node.uid)).then_some(&**gpu_node)
}

/// Returns the probe's last report, of any boot: which GPUs a node has, and how they are, is known until the next report.
#[must_use]
pub fn last(gpu_node: Option<&GpuNode>) -> Option<&Report> {
    gpu_node?.status.as_ref()?.report.as_ref()
}

/// Returns the probe's last report, if it is of the node's current boot. Everything else that a report contains depends on it: after
/// a reboot no driver is loaded, and a host that was reinstalled may have another operating system.
///
/// Kubelet reports the boot ID when it starts, and the probe that kubelet starts reports afterwards, so either may be ahead for
/// some seconds. Until they agree, no report counts. An empty boot ID contradicts nothing: virtual kubelets report none.
#[must_use]
pub fn current<'w>(node: &NodeFacts, gpu_node: Option<&'w GpuNode>) -> Option<&'w Report> {
    let report = last(gpu_node)?;
    let known = !report.boot_id.is_empty() && !node.boot_id.is_empty();
    (!known || *report.boot_id == *node.boot_id).then_some(report)
}
