//! Which nodes have a toolkit that is about to restart the container runtime.

use std::{sync::Arc, time::Duration};

use gpu_operator_crd::{Revision, gpunode::StageRevisions, keys, policy::Stage};
use k8s_openapi::api::core::v1::PodSpec;

use crate::{
    assess::pod_failure::pod_failure,
    clock::Clock,
    container_names::{INSTALL_TOOLKIT, RESTART_AT_END, RESTART_RUNTIME},
    revision,
    world::{ContainerFacts, ContainerState, DaemonSets, NodeFacts, ObservedTime, PodFacts, Role, World},
};

/// For each step of adding NVIDIA's runtime to the configuration.
const STEP_AT_MOST: Duration = Duration::from_mins(10);
/// The age of a pod that adds the runtime; it may have waited long for a driver.
const ENTERING_AT_MOST: Duration = Duration::from_hours(1);

/// Whether the toolkit restarts the container runtime, by its DaemonSet and not by what is wanted now, which changes with the policy and
/// with kubelet's report of a runtime that is down.
pub fn is_by(sets: &DaemonSets, revision: Option<&Revision>) -> bool {
    let pod = revision.and_then(|revision| pod_of(sets, revision));
    pod.and_then(|pod| pod.init_containers.as_ref()).into_iter().flatten().any(|init| init.name == RESTART_RUNTIME)
}

/// Whether the toolkit restarts the container runtime when it is removed: only if NVIDIA's runtime is the default.
pub fn is_at_end(sets: &DaemonSets, revision: &Revision) -> bool {
    let main = pod_of(sets, revision).and_then(|pod| pod.containers.first());
    let hook = main.and_then(|main| main.lifecycle.as_ref()?.pre_stop.as_ref()?.exec.as_ref()?.command.as_ref());
    hook.into_iter().flatten().any(|word| word == RESTART_AT_END)
}

fn pod_of<'w>(sets: &'w DaemonSets, revision: &Revision) -> Option<&'w PodSpec> {
    revision::pod_spec(sets, Stage::Toolkit, revision)
}

/// Returns the pod of the toolkit that the node's label names.
pub fn pod_on<'w>(world: &'w World, node: &NodeFacts) -> Option<&'w PodFacts> {
    let revision = Revision::from(node.labels.get(keys::TOOLKIT)?.as_str());
    let is_it = |pod: &&PodFacts| pod.role == Role::Operand(Stage::Toolkit) && pod.revision.as_ref() == Some(&revision);
    world.pods.on(&node.name).map(Arc::as_ref).find(is_it)
}

/// Whether a node's runtime may be restarted at any moment: `pod`, of the toolkit that the label names, is neither past that step nor
/// prevented from reaching it.
pub fn is_on_its_way(
    sets: &DaemonSets,
    node: &NodeFacts,
    have: &StageRevisions,
    pod: Option<&PodFacts>,
    clock: &Clock,
) -> bool {
    is_by(sets, have.toolkit.as_ref())
        && match pod.filter(|pod| !pod.is_leaving()) {
            Some(pod) => !is_past(pod) && !is_kept_from_it(pod, clock),
            // The pod is about to be created.
            None => node.ready,
        }
}

/// Whether a toolkit's pod is adding NVIDIA's runtime to the configuration. If it were deleted now, its changes would remain, because only
/// its main container reverts them. A stuck pod does not count.
pub fn is_entering(sets: &DaemonSets, pod: &PodFacts, clock: &Clock) -> bool {
    let begun =
        |step: &ContainerFacts| step.name == INSTALL_TOOLKIT && !matches!(step.state, ContainerState::Waiting { .. });
    let too_long =
        |since: Option<ObservedTime>, at_most| since.is_some_and(|since| clock.passed(since.local(), at_most));
    // The first check excludes most pods.
    !is_past(pod)
        && pod.init.iter().any(begun)
        && !pod.is_leaving()
        && is_by(sets, pod.revision.as_ref())
        && pod_failure(pod, clock).is_none()
        && !pod.init.iter().any(|step| too_long(step.running_since(), STEP_AT_MOST))
        && !too_long(pod.created, ENTERING_AT_MOST)
}

/// Init containers run once in a pod's life.
fn is_past(pod: &PodFacts) -> bool {
    pod.containers
        .iter()
        .any(|container| !matches!(container.state, ContainerState::Waiting { .. }) || container.last_failure.is_some())
}

fn is_kept_from_it(pod: &PodFacts, clock: &Clock) -> bool {
    let begun = pod
        .init
        .iter()
        .filter(|init| init.name == RESTART_RUNTIME)
        .any(|step| !matches!(step.state, ContainerState::Waiting { .. }) || step.last_failure.is_some());
    !begun && pod_failure(pod, clock).is_some()
}
