//! Pods that have to be recreated, in particular those that hold files of a previous driver container: the device plugin and
//! the MPS daemon have its library open, and the plugin's CDI specification lists files and device nodes of its root. A
//! restart of that container replaces them all, and while it is down no GPU may be allocatable.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use gpu_operator_crd::{NodeName, policy::Stage, reason::Reason};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{Assessment, pod_failure},
    inventory::{groups, report},
    revision,
    rollout::toolkit_restart,
    time::older,
    world::{ContainerFacts, ContainerState, Exit, PodFacts, Role, World},
};

/// The probe's report is newer than the start of a pod that has been running for this time.
const SETTLED: Duration = Duration::from_mins(1);

/// Returns the pods to recreate because the driver's container was restarted or is down. Their replacements wait in their init
/// containers for the driver's container, so each is recreated once per restart.
pub fn holders_of_an_old_root(world: &World) -> impl Iterator<Item = &PodFacts> {
    let pods = || world.pods.values().map(Arc::as_ref);
    let drivers = pods().filter(|pod| pod.is_nvidia_driver() && !pod.is_leaving() && is_of_its_node(world, pod));
    let drivers: BTreeMap<&NodeName, &PodFacts> = drivers.map(|pod| (&pod.node, pod)).collect();
    pods().filter(move |pod| {
        let driver = drivers.get(&pod.node);
        is_holder(pod) && driver.is_some_and(|driver| is_older(pod, driver))
    })
}

/// Returns the pods to recreate because of evidence against the driver's root, of which kubelet is unaware: it would start
/// GPU pods. Pods that have just started are not included, because the probe's report may be older.
pub fn holders_of_a_broken_root<'w>(assessment: &Assessment<'w>, now: Timestamp) -> impl Iterator<Item = &'w PodFacts> {
    let member = &assessment.member;
    let settled = move |pod: &PodFacts| pod.running_since().is_some_and(|since| older(since.local(), SETTLED, now));
    let broken = member.probe_pod().is_some_and(PodFacts::running) && assessment.against_driver.is_some();
    let pods = if broken { member.pods.clone() } else { Vec::new() };
    pods.into_iter().filter(move |pod| is_holder(pod) && settled(pod))
}

/// Returns whether a driver's pod is of the group that its node has, and not of one that a label names which another user changed.
fn is_of_its_node(world: &World, driver: &PodFacts) -> bool {
    world.nodes.get(&driver.node).is_some_and(|node| {
        let have = groups::of(world, node, report::gpu_node_of(world, node), &[driver]);
        have.driver.is_some() && have.driver == driver.group
    })
}

fn is_holder(pod: &PodFacts) -> bool {
    pod.holds_driver() && pod.has_started() && !pod.is_leaving()
}

/// Returns whether a pod was started before the driver's container, or that is down. Both times are from the same kubelet.
fn is_older(pod: &PodFacts, driver: &PodFacts) -> bool {
    match driver.running_since() {
        Some(started) => pod.running_since().is_some_and(|since| since < started),
        None => !pod.has_found(driver),
    }
}

/// Returns the pods to recreate, except those that restart a container runtime, which each pool recreates one at a time.
pub fn pods_to_recreate(world: &World, now: Timestamp) -> impl Iterator<Item = &PodFacts> {
    let pods = world.pods.values().filter(move |pod| is_to_be_recreated(world, pod, now));
    let restarts =
        |pod: &PodFacts| pod.role == Role::Operand(Stage::Toolkit) && toolkit_restart::is_by(world, pod.group.as_ref());
    let undone = pods.filter(move |pod| !restarts(pod)).map(Arc::as_ref);
    undone.chain(holders_of_an_old_root(world))
}

/// Returns whether a pod has to be recreated to do its work.
pub fn is_to_be_recreated(world: &World, pod: &PodFacts, now: Timestamp) -> bool {
    !pod.is_leaving() && (is_stuck(world, pod, now) || is_undone(pod))
}

/// Returns whether a pod cannot start and its template is outdated: only a new pod gets the current template, which may fix the
/// failure, and no running container is disturbed.
fn is_stuck(world: &World, pod: &PodFacts, now: Timestamp) -> bool {
    let Role::Operand(stage) = pod.role else { return false };
    // Checked first, because most pods have.
    if pod.has_started() {
        return false;
    }
    let set = pod.group.as_ref().and_then(|group| world.daemon_sets.get(&revision::daemon_set_name(stage, group)));
    let outdated = set.is_some_and(|set| set.applied.is_some() && set.applied.as_deref() != pod.applied.as_deref());
    outdated && pod_failure::pod_failure(pod, now).is_some()
}

/// Returns whether a toolkit pod reported that its configuration was removed: only its init containers restore it, and they run
/// once in the pod's life. A pod checks at most once a minute, so the pods are not recreated in a tight loop.
fn is_undone(pod: &PodFacts) -> bool {
    pod.role == Role::Operand(Stage::Toolkit) && pod.containers.iter().filter_map(last_exit).any(says_undone)
}

fn last_exit(container: &ContainerFacts) -> Option<&Exit> {
    match &container.state {
        ContainerState::Ended(exit) => Some(exit),
        ContainerState::Waiting { .. } | ContainerState::Running(_) => container.last_failure.as_ref(),
    }
}

fn says_undone(exit: &Exit) -> bool {
    pod_failure::named_reason(&exit.message).is_some_and(|(reason, _)| reason == Reason::RuntimeConfigDrifted)
}
