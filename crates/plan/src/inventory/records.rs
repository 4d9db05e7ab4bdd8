//! What GpuNodes and Nodes record: the probe's report, the revisions of a node's stages, and the taint of this operator.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNode, NodeName, Report, Revision,
    gpunode::{GpuCounts, StageRevisions},
    keys,
    policy::Stage,
    policy_status::MAX_PUBLISHED_KEYS,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry, jiff::Timestamp};
use kube::ResourceExt;

use crate::{
    revision,
    world::{DaemonSets, NodeFacts, PodFacts, Role, World},
};

/// Returns `None` if the GpuNode is owned by an earlier Node of the same name.
pub fn gpu_node_of<'w>(world: &'w World, node: &NodeFacts) -> Option<&'w GpuNode> {
    let gpu_node = world.gpu_nodes.get(&node.name)?;
    let owners = gpu_node.owner_references();
    (owners.is_empty() || owners.iter().any(|owner| owner.uid == node.uid)).then_some(&**gpu_node)
}

/// Whether a GpuNode belongs to a Node, and not to an earlier one of the same name. One without an owner was created by the probe of a
/// running machine, maybe that of the deleted Node, unless the report is of the Node's boot.
pub fn belongs_to(gpu_node: &GpuNode, node: &NodeFacts) -> bool {
    match gpu_node.owner_references() {
        [] => last_report(Some(gpu_node)).is_none_or(|report| is_of_boot(report, node)),
        owners => owners.iter().any(|owner| owner.uid == node.uid),
    }
}

/// The report may be of any boot: a node's GPUs are known until the next report.
pub fn last_report(gpu_node: Option<&GpuNode>) -> Option<&Report> {
    gpu_node?.status.as_ref()?.report.as_ref()
}

/// According to the API server. Only reports that differ are written.
pub fn last_report_at(gpu_node: Option<&GpuNode>) -> Option<Timestamp> {
    let is_report = |entry: &&ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(keys::PROBE_MANAGER) && entry.subresource.as_deref() == Some("status")
    };
    gpu_node?.managed_fields().iter().find(is_report)?.time.as_ref().map(|time| time.0)
}

/// Returns the last report if it is of the node's current boot. The driver and the operating system may have changed with a reboot. Kubelet
/// and probe report the boot ID one after the other: until they agree, no report counts. An empty boot ID contradicts nothing, because
/// virtual kubelets report none.
pub fn current_report<'w>(node: &NodeFacts, gpu_node: Option<&'w GpuNode>) -> Option<&'w Report> {
    last_report(gpu_node).filter(|report| is_of_boot(report, node))
}

fn is_of_boot(report: &Report, node: &NodeFacts) -> bool {
    report.boot_id.is_empty() || node.boot_id.is_empty() || *report.boot_id == *node.boot_id
}

/// Returns how many GPUs the DRA driver of this operator publishes on a node. The Node's status does not list them.
pub fn by_claims(gpus: &GpuCounts) -> u32 {
    if gpus.by_claims { gpus.allocatable } else { 0 }
}

// A node's labels place the pods, but other users can change labels, so the revisions are recorded in the GpuNode first.

/// Returns the recorded revisions, with two exceptions. If this operator wrote another revision in the driver's label, the labels of the
/// record have not been written yet: the node has those in its labels. Without a record, as after a user deleted the GpuNode, labels count
/// if this operator wrote them or they name a DaemonSet; where one is missing, the running pod counts.
pub fn current_revisions(
    daemon_sets: &DaemonSets,
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
    pods: &[&PodFacts],
) -> StageRevisions {
    let mut labelled = revision::labelled_revisions(node);
    let recorded = gpu_node.and_then(|gpu_node| gpu_node.spec.current.as_ref());
    let exists =
        |stage: Stage, revision: &Revision| daemon_sets.contains_key(&revision::daemon_set_name(stage, revision));
    let counts = |stage: Stage, revision: &Revision| {
        let (owned, exists) = (node.owned_labels.contains(stage.key()), exists(stage, revision));
        if recorded.is_some() { owned && exists } else { owned || exists }
    };
    if let Some(recorded) = recorded {
        let driver = labelled.driver.as_ref().filter(|_| labelled.driver != recorded.driver);
        if !driver.is_some_and(|driver| counts(Stage::Driver, driver)) {
            return recorded.clone();
        }
    }
    for stage in Stage::ALL {
        let revision = labelled.get_mut(stage);
        revision.take_if(|revision| !counts(stage, revision));
        if recorded.is_none() && revision.is_none() {
            let stays = |pod: &&&PodFacts| pod.role == Role::Operand(stage) && !pod.is_leaving();
            let pod = pods.iter().find(stays).and_then(|pod| pod.revision.as_ref());
            *revision = pod.filter(|revision| exists(stage, revision)).cloned();
        }
    }
    labelled
}

// The annotation [`keys::OWN_TAINT`] records the taint of this operator, but the node's kubelet can write it as well, and may not
// remove a taint itself. So a taint is removed only if a policy confirms its key, in its spec or in its status, which lists each key
// before the first taint with it.

/// Returns the world without the records that no policy confirms. They are ignored and not removed, because they may be of a policy that
/// cannot be parsed.
pub fn with_confirmed_taints(world: &World) -> Cow<'_, World> {
    let policies = world.policies.values();
    let named: BTreeSet<&str> =
        policies.flat_map(|policy| policy.spec.taint_keys().into_iter().chain(listed_taint_keys(policy))).collect();
    let is_confirmed = |key: &str| key == keys::UNHEALTHY_TAINT || named.contains(key);
    let recorded = world.nodes.values().filter_map(|node| Some((&node.name, node.own_taint.as_ref()?)));
    let doubtful: Vec<NodeName> =
        recorded.filter(|(_, taint)| !is_confirmed(&taint.key)).map(|(node, _)| node.clone()).collect();
    if doubtful.is_empty() {
        return Cow::Borrowed(world);
    }
    let mut believed = world.clone();
    for name in doubtful {
        if let Some(node) = believed.nodes.get_mut(&name) {
            Arc::make_mut(node).own_taint = None;
        }
    }
    Cow::Owned(believed)
}

/// Whether nodes may get a taint with this key from a policy: its record is believed even after the policy changes.
pub fn publishes_taint(policy: &ClusterGpuPolicy, key: &str) -> bool {
    key == keys::UNHEALTHY_TAINT || listed_taint_keys(policy).any(|listed| listed == key)
}

/// Returns the keys that the policy names, and earlier ones that nodes still have.
pub fn published_taint_keys(policy: &ClusterGpuPolicy, world: &World) -> Vec<String> {
    let named = policy.spec.taint_keys();
    // The nodes are searched only for a key that the policy does not name any more.
    let is_used =
        |key: &str| world.nodes.values().any(|node| node.own_taint.as_ref().is_some_and(|taint| taint.key == key));
    let earlier = listed_taint_keys(policy).filter(|key| !named.contains(key) && is_used(key));
    named.iter().copied().chain(earlier).take(MAX_PUBLISHED_KEYS).map(str::to_owned).collect()
}

fn listed_taint_keys(policy: &ClusterGpuPolicy) -> impl Iterator<Item = &str> {
    policy.status.iter().flat_map(|status| &status.published_keys).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::GpuNodeSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    use super::*;

    #[test]
    fn a_gpu_node_is_of_the_node_that_owns_it() {
        let node = NodeFacts { name: "a".into(), uid: "now".into(), ..NodeFacts::default() };
        for (owner, is_of_node) in [(None, true), (Some("now"), true), (Some("earlier"), false)] {
            let mut gpu_node = GpuNode::new("a", GpuNodeSpec::default());
            let owner = owner.map(|uid| OwnerReference { uid: uid.to_owned(), ..OwnerReference::default() });
            gpu_node.metadata.owner_references = Some(owner.into_iter().collect());
            let mut world = World::default();
            world.gpu_nodes.insert("a".into(), Arc::new(gpu_node.clone()));
            assert_eq!(gpu_node_of(&world, &node).is_some(), is_of_node, "{gpu_node:?}");
        }
    }
}
