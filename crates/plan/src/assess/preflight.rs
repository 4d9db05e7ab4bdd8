//! Pods that pull the images of a revision on one node before any node moves to it: their names, and what became of them.

use std::{collections::BTreeSet, time::Duration};

use gpu_operator_crd::{NodeName, gpunode::StageRevisions, keys};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{
        member::Member,
        pod_failure::{container_failure, lacks_image, unschedulable},
    },
    container_names::PREFLIGHT_DRIVER,
    revision,
    time::older,
    world::{ContainerFacts, ContainerState, PodFacts, Role, World},
};

/// What became of the images of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pull {
    /// They are being pulled.
    Underway,
    /// They have been pulled.
    Done,
    /// They cannot be pulled for this reason, at present.
    Failed(String),
}

/// Returns the beginning of the names of the pods for a revision, which is the same on all nodes.
#[must_use]
pub fn prefix(goal: &StageRevisions) -> String {
    format!("{}-{}", keys::PREFLIGHT, revision::short(goal, 10))
}

/// Returns the name of the pod for a revision on a node.
#[must_use]
pub fn name(goal: &StageRevisions, node: &NodeName) -> String {
    format!("{}-{}", prefix(goal), revision::short(node, 6))
}

/// Returns the pod on a node for the revision with this [`prefix`].
#[must_use]
pub fn pod_on<'w>(member: &Member<'w>, prefix: &str) -> Option<&'w PodFacts> {
    let is_it = |pod: &&PodFacts| pod.role == Role::Preflight && prefix_of(pod) == Some(prefix) && !pod.is_leaving();
    member.pods.iter().copied().find(is_it)
}

fn prefix_of(pod: &PodFacts) -> Option<&str> {
    pod.name.rsplit_once('-').map(|(prefix, _)| prefix)
}

/// Returns what became of the images of a pod that may take this long. The exit codes of its containers prove nothing: an image may
/// not contain the command.
#[must_use]
pub fn state(pod: &PodFacts, limit: Duration, now: Timestamp) -> Pull {
    if !pod.containers.is_empty() && pod.containers.iter().all(is_pulled) {
        return Pull::Done;
    }
    if let Some(end) = &pod.end {
        return Pull::Failed(format!("kubelet ended pod {}: {}: {}", pod.name, end.reason, end.message));
    }
    let waiting = pod.containers.iter().filter(|container| !is_pulled(container));
    let failure = unschedulable(pod, now)
        .or_else(|| waiting.into_iter().find_map(|container| container_failure(pod, container, now)));
    let is_overdue = || pod.created.is_some_and(|created| older(created.local(), limit, now));
    match failure {
        Some((_, message)) => Pull::Failed(message),
        None if is_overdue() => Pull::Failed(format!("pod {} has not pulled its images by its deadline", pod.name)),
        None => Pull::Underway,
    }
}

/// Returns whether kubelet has pulled the image of a container: all that may fail later comes after that.
fn is_pulled(container: &ContainerFacts) -> bool {
    match &container.state {
        ContainerState::Running(_) | ContainerState::Ended(_) => true,
        ContainerState::Waiting { reason, .. } => {
            ["CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"]
                .contains(&reason.as_str())
        }
    }
}

/// Returns the [`prefix`] of each revision whose driver image does not exist.
#[must_use]
pub fn without_driver_image(world: &World) -> BTreeSet<&str> {
    let is_missing = |container: &ContainerFacts| container.name.as_str() == PREFLIGHT_DRIVER && lacks_image(container);
    let pods = world.pods.values().filter(|pod| pod.role == Role::Preflight && pod.containers.iter().any(is_missing));
    pods.filter_map(|pod| prefix_of(pod)).collect()
}
