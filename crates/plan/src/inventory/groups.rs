//! Which DaemonSet groups a node has. Its labels place the pods, but other users can change labels of Nodes, so the groups are recorded
//! in the node's GpuNode before the labels are written.

use gpu_operator_crd::{GpuNode, Revision, gpunode::StageRevisions, policy::Stage};

use crate::{
    revision,
    world::{NodeFacts, PodFacts, Role, World},
};

/// Returns the groups that a node has, given its GpuNode and its pods: those that are recorded there, whatever its labels name.
///
/// There are two exceptions. If the driver's label names another group and this operator wrote it, the labels that belong to the
/// record have not been written: the node still has the groups in its labels, and it is decided again whether they may be replaced.
/// Without a record, as after a user deleted the GpuNode, the labels are known, those that this operator wrote, and others if they
/// name a DaemonSet; where such a label is missing, the group of the pod that is still running.
pub fn of(world: &World, node: &NodeFacts, gpu_node: Option<&GpuNode>, pods: &[&PodFacts]) -> StageRevisions {
    let mut labelled = revision::node_groups(node);
    let recorded = gpu_node.and_then(|gpu_node| gpu_node.spec.current.as_ref());
    let exists =
        |stage: Stage, group: &Revision| world.daemon_sets.contains_key(&revision::daemon_set_name(stage, group));
    let counts = |stage: Stage, group: &Revision| {
        let (owned, exists) = (node.owned_labels.contains(stage.key()), exists(stage, group));
        if recorded.is_some() { owned && exists } else { owned || exists }
    };
    if let Some(recorded) = recorded {
        let driver = labelled.driver.as_ref().filter(|_| labelled.driver != recorded.driver);
        if !driver.is_some_and(|driver| counts(Stage::Driver, driver)) {
            return recorded.clone();
        }
    }
    for stage in Stage::ALL {
        let group = labelled.get_mut(stage);
        group.take_if(|group| !counts(stage, group));
        if recorded.is_none() && group.is_none() {
            let stays = |pod: &&&PodFacts| pod.role == Role::Operand(stage) && !pod.is_leaving();
            let pod = pods.iter().find(stays).and_then(|pod| pod.group.as_ref());
            *group = pod.filter(|group| exists(stage, group)).cloned();
        }
    }
    labelled
}
