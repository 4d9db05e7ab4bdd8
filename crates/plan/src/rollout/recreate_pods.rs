//! Pods that have to be recreated, in particular those with files of a previous driver container: the device plugin and the MPS daemon have
//! its library open, and the CDI specification lists files of its root. While that container is down, no GPU may be allocatable.

use std::time::Duration;

use gpu_operator_crd::{GpuNode, policy::Stage, reason::Reason};

use crate::{
    assess::{Assessment, mig, pod_failure},
    clock::Clock,
    inventory::records,
    note::Note,
    revision,
    rollout::{decision::PoolDecision, toolkit_restart},
    world::{ContainerFacts, ContainerState, DaemonSets, Exit, NodeFacts, PodFacts, Role},
};

/// A pod that has been running for this time is older than the probe's report.
const SETTLED: Duration = Duration::from_mins(1);

/// Returns the pods of a node that are older than the driver's container, or whose driver is down. Their replacements wait for the driver's
/// container, so each is recreated once per restart.
fn pods_with_stale_driver_files<'w>(
    sets: &DaemonSets,
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
    pods: &[&'w PodFacts],
) -> impl Iterator<Item = &'w PodFacts> {
    let pods = || pods.iter().copied();
    // It is of the node's revision, and not of one that a changed label names.
    let is_of_node = |driver: &PodFacts| {
        let have = records::current_revisions(sets, node, gpu_node, &[driver]);
        have.driver.is_some() && have.driver == driver.revision
    };
    let driver = pods().rfind(|pod| pod.is_nvidia_driver() && !pod.is_leaving() && is_of_node(pod));
    pods().filter(move |pod| is_holder(pod) && driver.is_some_and(|driver| is_older(pod, driver)))
}

/// Kubelet is unaware of evidence against the driver's root and would start GPU pods. Pods that have just started may be newer than the
/// report.
pub fn pods_with_broken_driver_files<'w>(
    assessment: &Assessment<'w>,
    clock: &Clock,
) -> impl Iterator<Item = &'w PodFacts> {
    let member = &assessment.member;
    let settled = move |pod: &PodFacts| pod.running_since().is_some_and(|since| clock.passed(since.local(), SETTLED));
    let broken = member.probe_pod().is_some_and(PodFacts::running) && assessment.against_driver.is_some();
    let pods = if broken { member.pods.clone() } else { Vec::new() };
    pods.into_iter().filter(move |pod| is_holder(pod) && settled(pod))
}

fn is_holder(pod: &PodFacts) -> bool {
    pod.uses_driver() && pod.has_started() && !pod.is_leaving()
}

/// Both times are from the same kubelet.
fn is_older(pod: &PodFacts, driver: &PodFacts) -> bool {
    match driver.running_since() {
        Some(started) => pod.running_since().is_some_and(|since| since < started),
        None => !pod.proves_running(driver),
    }
}

/// Returns the pods of a node, without those that restart a container runtime, which each pool recreates one at a time.
pub fn pods_to_recreate<'w>(
    sets: &DaemonSets,
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
    pods: &[&'w PodFacts],
    clock: &Clock,
) -> impl Iterator<Item = &'w PodFacts> {
    let restarts = |pod: &PodFacts| {
        pod.role == Role::Operand(Stage::Toolkit) && toolkit_restart::is_by(sets, pod.revision.as_ref())
    };
    let undone = pods.iter().copied().filter(move |pod| is_to_be_recreated(sets, pod, clock));
    undone.filter(move |pod| !restarts(pod)).chain(pods_with_stale_driver_files(sets, node, gpu_node, pods))
}

pub fn is_to_be_recreated(sets: &DaemonSets, pod: &PodFacts, clock: &Clock) -> bool {
    !pod.is_leaving() && (is_stuck(sets, pod, clock) || is_undone(pod))
}

/// Whether a pod cannot start and its template is outdated: only a new pod gets the current template, and no running container is
/// disturbed.
fn is_stuck(sets: &DaemonSets, pod: &PodFacts, clock: &Clock) -> bool {
    let Role::Operand(stage) = pod.role else { return false };
    // Checked first, because most pods have.
    if pod.has_started() {
        return false;
    }
    let set = pod.revision.as_ref().and_then(|revision| sets.get(&revision::daemon_set_name(stage, revision)));
    let outdated = set.is_some_and(|set| set.applied.is_some() && set.applied.as_deref() != pod.applied.as_deref());
    outdated && pod_failure::pod_failure(pod, clock).is_some()
}

/// Whether a toolkit pod reports that its configuration was removed: only init containers restore it, which run once. A pod checks at most
/// once a minute, so this is no tight loop.
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

/// Restores MIG layouts that were changed manually after the device plugin started, on one node at a time and once no pod uses the GPUs.
pub fn restore_mig_layouts(members: &[Assessment<'_>], clock: &Clock, pool: &mut PoolDecision) {
    for Assessment { member, .. } in members {
        let name = &member.node.name;
        let Some(decision) = pool.nodes.get_mut(name).filter(|decision| decision.note.is_none()) else { continue };
        if member.want().is_none_or(|want| *want != member.have) {
            continue;
        }
        let Some(differs) = mig::differs(member) else { continue };
        let Some(pod) = mig::settled_pod(member, clock) else {
            // No watch reports that enough time has passed.
            pool.ask_again |= member.pod(Stage::DevicePlugin).is_some_and(PodFacts::running);
            continue;
        };
        match member.gpu_pods.map(|pods| &pods.users) {
            None => pool.ask(member),
            Some(pods) if pods.is_empty() => {
                pool.delete_pods.insert(pod.name.clone());
                return;
            }
            Some(pods) => {
                pool.ask_again = true;
                let message = format!(
                    "{differs}; the layout is restored once no pod uses a GPU of this node; pods that use one: {}",
                    pods.len()
                );
                let waits_on = pods.iter().take(10).map(|pod| pod.name.clone()).collect();
                decision.note = Some(Note { reason: Reason::MigLayoutDiffers, message, waits_on });
            }
        }
    }
}
