//! Pods that hold what a driver's container of before has left: the device plugin and MPS's daemon have its library open,
//! and the plugin's CDI specification names the files and device nodes of its root. With another start of that container
//! all of it is another one's, and while it is down there must be no GPU to hand out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use gpu_operator_crd::{policy::Stage, reason::Reason};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{driver_evidence::against_driver, member::Member, pod_failure},
    revision,
    rollout::toolkit_restart,
    time::older,
    world::{ContainerFacts, ContainerState, Exit, PodFacts, Role, World},
};

/// How long a pod has run of which the probe's report is not of before.
const SETTLED: Duration = Duration::from_mins(1);

/// Returns the pods to recreate. Their replacements wait at their gates for the driver's container, so that each is
/// replaced once for each of its starts.
pub fn holders_of_an_old_root(world: &World) -> impl Iterator<Item = &PodFacts> {
    let pods = || world.pods.values().map(Arc::as_ref);
    let drivers: BTreeMap<&str, Option<Timestamp>> = pods().filter_map(driver).collect();
    pods().filter(move |pod| {
        let started = drivers.get(pod.node.as_str());
        is_holder(pod) && started.is_some_and(|started| is_older(pod, *started))
    })
}

/// The node of a pod with NVIDIA's driver container, and since when that runs.
fn driver(pod: &PodFacts) -> Option<(&str, Option<Timestamp>)> {
    (pod.is_nvidia_driver() && !pod.is_leaving()).then(|| (pod.node.as_str(), pod.running_since()))
}

/// Returns the pods to recreate where there is evidence against the driver's root, which kubelet knows nothing of and would
/// send GPU pods to: those that have run for a while. The probe may be behind those that have just passed their gates.
pub fn holders_of_a_broken_root<'w>(member: &Member<'w>, now: Timestamp) -> impl Iterator<Item = &'w PodFacts> {
    let settled = move |pod: &PodFacts| pod.running_since().is_some_and(|since| older(since, SETTLED, now));
    let broken = member.probe_pod().is_some_and(PodFacts::running) && against_driver(member, now).is_some();
    let pods = if broken { member.pods.clone() } else { Vec::new() };
    pods.into_iter().filter(move |pod| is_holder(pod) && settled(pod))
}

fn is_holder(pod: &PodFacts) -> bool {
    pod.holds_driver() && pod.has_started() && !pod.is_leaving()
}

/// Whether a pod started before the driver's container did, which may be down. Both times are of one kubelet.
fn is_older(pod: &PodFacts, driver: Option<Timestamp>) -> bool {
    driver.is_none_or(|driver| pod.running_since().is_some_and(|since| since < driver))
}

/// Pods to make anew, but for those that restart a container runtime: of these a pool has its turns.
#[must_use]
pub fn pods_to_renew(world: &World, now: Timestamp) -> BTreeSet<String> {
    let pods = world.pods.values().filter(|pod| is_to_be_renewed(world, pod, now));
    let restarts = |pod: &PodFacts| {
        pod.role == Role::Operand(Stage::Toolkit) && toolkit_restart::is_by(world, pod.group.as_deref())
    };
    let undone = pods.filter(|pod| !restarts(pod)).map(Arc::as_ref);
    undone.chain(holders_of_an_old_root(world)).map(|pod| pod.name.clone()).collect()
}

/// Whether nothing but a new pod can do what this one should.
#[must_use]
pub fn is_to_be_renewed(world: &World, pod: &PodFacts, now: Timestamp) -> bool {
    !pod.is_leaving() && (is_stuck(world, pod, now) || is_undone(pod))
}

/// Whether a pod cannot start and is of an older content than its DaemonSet: nothing but a new pod takes up the cure, and
/// there is nothing running in it that it could disturb.
fn is_stuck(world: &World, pod: &PodFacts, now: Timestamp) -> bool {
    let Role::Operand(stage) = pod.role else { return false };
    let set = pod.group.as_deref().and_then(|group| world.daemon_sets.get(&revision::daemon_set_name(stage, group)));
    let outdated = set.is_some_and(|set| set.applied.is_some() && set.applied.as_deref() != pod.applied.as_deref());
    outdated && !pod.has_started() && pod_failure::hold_up(pod, now).is_some()
}

/// Whether a pod of the toolkit found its work undone: only what comes before a pod's main container does it again, and that
/// runs once in a pod's life. A pod looks no more than once a minute, so that this cannot go round in circles.
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
