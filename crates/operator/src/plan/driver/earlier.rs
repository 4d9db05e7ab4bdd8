//! Driver pods that an earlier version of the operator made: those of NVIDIA's container lack the helper that makes device
//! nodes, so that the gate of a pod that is made today never opens beside them.

use gpu_operator_crd::{policy::Stage, report::CONTAINER_ROOT};

use super::{
    super::{children, daemon_set::DRIVER_GATE, member::Member},
    INSTALLER, is_nvidias,
};
use crate::world::{ContainerState, PodFacts, World};

/// Returns the driver's pod of a node on which a pod waits at its gate for device nodes which that one does not make, and the
/// names of the nodes.
#[must_use]
pub fn in_the_way<'w>(member: &Member<'w>) -> Option<(&'w PodFacts, &'w [String])> {
    let pod = member.pod(Stage::Driver).filter(|pod| is_of_earlier_version(pod))?;
    let facts = &member.report()?.driver;
    let loaded = facts.loaded.as_ref()?;
    let root = facts.installed.iter().find(|found| found.root == CONTAINER_ROOT && found.version == *loaded)?;
    let waits = !root.missing_devices.is_empty() && member.pods.iter().any(|pod| waits_at_gate(pod));
    waits.then_some((pod, root.missing_devices.as_slice()))
}

/// Returns the same pod where it is to be deleted, so that its DaemonSet makes a current one: once no pod runs on the node's
/// GPUs, and none can start because no device plugin serves.
#[must_use]
pub fn to_replace<'w>(member: &Member<'w>, world: &World) -> Option<&'w PodFacts> {
    let (pod, _) = in_the_way(member)?;
    let serves = member.pods.iter().any(|pod| pod.holds_driver() && pod.has_started());
    let unused = member.gpu_holders.is_some_and(<[String]>::is_empty) && !serves;
    // A move of the driver replaces the pod in its turn.
    let stays = !member.driver_waits_for_its_turn();
    (unused && stays && children::is_outdated(world, pod)).then_some(pod)
}

/// Whether a pod is that of NVIDIA's container, without the helper. An installer's pod has its installer as an init container.
fn is_of_earlier_version(pod: &PodFacts) -> bool {
    let installs = pod.init.iter().any(|init| init.name == INSTALLER);
    pod.has_started() && !pod.is_leaving() && !is_nvidias(pod) && !installs
}

fn waits_at_gate(pod: &PodFacts) -> bool {
    pod.init.iter().any(|init| init.name == DRIVER_GATE && matches!(init.state, ContainerState::Running(_)))
}
