//! What a GpuNode says about the present: a GpuNode belongs to one Node, and the probe's report to one boot of it.

use gpu_operator_crd::{GpuNode, Report, keys};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry, jiff::Timestamp};
use kube::ResourceExt;

use crate::world::{NodeFacts, World};

/// Returns the GpuNode of a Node. Nothing in one that is owned by an earlier Node of the same name applies to the new one.
pub fn gpu_node_of<'w>(world: &'w World, node: &NodeFacts) -> Option<&'w GpuNode> {
    let gpu_node = world.gpu_nodes.get(&node.name)?;
    let owners = gpu_node.owner_references();
    (owners.is_empty() || owners.iter().any(|owner| owner.uid == node.uid)).then_some(&**gpu_node)
}

/// Returns whether a GpuNode belongs to a Node, and not to an earlier one of the same name.
///
/// One without an owner has been created by the probe of a running machine, and contains only its report. That machine may be the
/// one whose Node was deleted, unless the report is of the Node's boot.
pub fn belongs_to(gpu_node: &GpuNode, node: &NodeFacts) -> bool {
    match gpu_node.owner_references() {
        [] => last(Some(gpu_node)).is_none_or(|report| is_of_boot(report, node)),
        owners => owners.iter().any(|owner| owner.uid == node.uid),
    }
}

/// Returns the probe's last report, of any boot: which GPUs a node has, and how they are, is known until the next report.
pub fn last(gpu_node: Option<&GpuNode>) -> Option<&Report> {
    gpu_node?.status.as_ref()?.report.as_ref()
}

/// Returns when the probe last reported, according to the API server: only reports that differ from the one before are written.
pub fn written(gpu_node: Option<&GpuNode>) -> Option<Timestamp> {
    let is_report = |entry: &&ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(keys::PROBE_MANAGER) && entry.subresource.as_deref() == Some("status")
    };
    gpu_node?.managed_fields().iter().find(is_report)?.time.as_ref().map(|time| time.0)
}

/// Returns the probe's last report, if it is of the node's current boot. Everything else that a report contains depends on it: after
/// a reboot no driver is loaded, and a host that was reinstalled may have another operating system.
///
/// Kubelet reports the boot ID when it starts, and the probe that kubelet starts reports afterwards, so either may be ahead for
/// some seconds. Until they agree, no report counts. An empty boot ID contradicts nothing: virtual kubelets report none.
pub fn current<'w>(node: &NodeFacts, gpu_node: Option<&'w GpuNode>) -> Option<&'w Report> {
    last(gpu_node).filter(|report| is_of_boot(report, node))
}

fn is_of_boot(report: &Report, node: &NodeFacts) -> bool {
    report.boot_id.is_empty() || node.boot_id.is_empty() || *report.boot_id == *node.boot_id
}
