//! Restarts of container runtimes that are about to be: which nodes have a toolkit on its way to one.

use std::time::Duration;

use gpu_operator_crd::{gpunode::Groups, policy::Stage};
use k8s_openapi::{api::core::v1::PodSpec, jiff::Timestamp};

use crate::{
    assess::pod_failure::hold_up,
    container_names::{INSTALL_TOOLKIT, RESTART_AT_END, RESTART_RUNTIME},
    revision,
    time::older,
    world::{ContainerFacts, ContainerState, NodeFacts, PodFacts, World},
};

/// How long a step of entering NVIDIA's runtime may take, …
const STEP_AT_MOST: Duration = Duration::from_mins(10);
/// … and how old its pod may be, which may have waited long for a driver.
const ENTERING_AT_MOST: Duration = Duration::from_hours(1);
/// Whether the toolkit of a group restarts the container runtime: by what the group stands for, not by what is wanted now,
/// which changes with the policy and with what kubelet says of a runtime that is down.
#[must_use]
pub fn is_by(world: &World, group: Option<&str>) -> bool {
    let pod = group.and_then(|group| pod_of(world, group));
    pod.and_then(|pod| pod.init_containers.as_ref()).into_iter().flatten().any(|init| init.name == RESTART_RUNTIME)
}

/// Whether the toolkit of a group restarts the container runtime as it goes: only one that runs every pod has to be told
/// then.
#[must_use]
pub fn is_at_end(world: &World, group: &str) -> bool {
    let main = pod_of(world, group).and_then(|pod| pod.containers.first());
    let hook = main.and_then(|main| main.lifecycle.as_ref()?.pre_stop.as_ref()?.exec.as_ref()?.command.as_ref());
    hook.into_iter().flatten().any(|word| word == RESTART_AT_END)
}

fn pod_of<'w>(world: &'w World, group: &str) -> Option<&'w PodSpec> {
    let set = world.daemon_sets.get(&revision::daemon_set_name(Stage::Toolkit, group))?;
    set.spec.as_ref()?.template.spec.as_ref()
}

/// Whether a node's runtime may be restarted at any moment: its label calls for a toolkit that does so, and that has neither
/// got past it nor is kept from getting there. `pod` is the one that belongs to the label.
#[must_use]
pub fn is_on_its_way(world: &World, node: &NodeFacts, have: &Groups, pod: Option<&PodFacts>, now: Timestamp) -> bool {
    is_by(world, have.toolkit.as_deref())
        && match pod.filter(|pod| !pod.is_leaving()) {
            Some(pod) => !is_past(pod) && !is_kept_from_it(pod, now),
            // It is about to be made.
            None => node.ready,
        }
}

/// Whether a toolkit's pod is in the midst of entering NVIDIA's runtime: what it has entered by then stays if it goes, since
/// only its main container takes that out again. One that is stuck there is waited for no longer.
#[must_use]
pub fn is_entering(world: &World, pod: &PodFacts, now: Timestamp) -> bool {
    let begun =
        |step: &ContainerFacts| step.name == INSTALL_TOOLKIT && !matches!(step.state, ContainerState::Waiting { .. });
    let too_long = |since: Option<Timestamp>, at_most| since.is_some_and(|since| older(since, at_most, now));
    // Of most pods the first question tells already.
    !is_past(pod)
        && pod.init.iter().any(begun)
        && !pod.is_leaving()
        && is_by(world, pod.group.as_deref())
        && hold_up(pod, now).is_none()
        && !pod.init.iter().any(|step| too_long(step.running_since(), STEP_AT_MOST))
        && !too_long(pod.created, ENTERING_AT_MOST)
}

/// What comes before a pod's main container runs once in the pod's life.
fn is_past(pod: &PodFacts) -> bool {
    pod.containers
        .iter()
        .any(|container| !matches!(container.state, ContainerState::Waiting { .. }) || container.last_failure.is_some())
}

/// Whether something else is the matter with a pod, before that step.
fn is_kept_from_it(pod: &PodFacts, now: Timestamp) -> bool {
    let begun = pod
        .init
        .iter()
        .filter(|init| init.name == RESTART_RUNTIME)
        .any(|step| !matches!(step.state, ContainerState::Waiting { .. }) || step.last_failure.is_some());
    !begun && hold_up(pod, now).is_some()
}
