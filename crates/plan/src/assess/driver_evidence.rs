//! Evidence against a driver that allocatable GPUs seem to prove. Kubelet keeps devices allocatable after a device plugin has
//! registered them, even if no container can be started with them any more.

use gpu_operator_crd::{
    GpuNodeStatus,
    policy::Stage,
    reason::Reason,
    report::{CONTAINER_ROOT, DriverFacts},
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{driver::has_nvidias_container, member::Member},
    container_names::DEVICE_NODES,
    note::Note,
    settings::ROOT_GRACE,
    time::older,
    world::{ContainerState, PodFacts},
};

/// Returns the evidence against the driver of a node that has NVIDIA's driver container, if there is any. During an update none is
/// needed, because every stage is proven then.
pub fn against_driver(member: &Member<'_>, now: Timestamp) -> Option<Note> {
    let facts = &member.report?.driver;
    let pod = member.pod(Stage::Driver);
    if !has_nvidias_container(member) || member.rollout().is_some() {
        return None;
    }
    // Until a plugin has found the driver, nothing is lost: a container that has just started is still creating its root, and
    // the probe may see the module before kubelet reports that the container runs.
    let plugin = member.pod(Stage::DevicePlugin);
    let was_there = plugin.is_some_and(PodFacts::has_started);
    let known = |reason| member.status().is_some_and(|status| status.reason() == Some(reason));
    let Some((pod, since)) = pod.and_then(|pod| Some((pod, pod.running_since()?))) else {
        if is_served_by_another(member, plugin) {
            return None;
        }
        let has_failed = pod.is_some_and(PodFacts::has_failed);
        let was_ready = member.allocatable() > 0 && member.status().is_some_and(GpuNodeStatus::is_ready);
        let is_unreported = plugin.zip(pod).is_some_and(|(plugin, pod)| plugin.has_found(pod));
        let is_lost = has_failed || known(Reason::DriverDown) || !is_unreported && (was_there || was_ready);
        return (facts.loaded.is_some() && is_lost).then(|| Note::new(Reason::DriverDown, down(pod)));
    };
    let lacks = lacking(facts, pod)?;
    let is_lost = known(Reason::DriverRootIncomplete) || was_there && older(since.local(), ROOT_GRACE, now);
    let reason = if is_lost { Reason::DriverRootIncomplete } else { Reason::DriverInstalling };
    let message = match reason {
        Reason::DriverInstalling => format!("pod {} is installing the driver: {lacks}", pod.name),
        _ => format!("{lacks}; no GPU pod can start: delete pod {} to recreate the driver's root", pod.name),
    };
    Some(Note::new(reason, message))
}

/// Returns whether the driver's container of another revision still runs, because its pod has not been replaced yet, and the device
/// plugin was started after it.
fn is_served_by_another(member: &Member<'_>, plugin: Option<&PodFacts>) -> bool {
    let found = plugin.and_then(PodFacts::running_since);
    let mut drivers = member.pods_of(Stage::Driver).filter_map(PodFacts::running_since);
    drivers.any(|started| found.is_some_and(|found| started <= found))
}

/// Returns what programs need and the driver's root lacks, if anything.
fn lacking(facts: &DriverFacts, pod: &PodFacts) -> Option<String> {
    // A running plugin found a loaded driver and keeps it loaded: a report without one is outdated.
    let loaded = facts.loaded.as_ref()?;
    let root = facts.installed.iter().find(|found| found.root == CONTAINER_ROOT && found.version == *loaded);
    let Some(root) = root else {
        return Some(format!(
            "driver {loaded} is loaded, but there is no libnvidia-ml.so.{loaded} under {CONTAINER_ROOT}"
        ));
    };
    (!root.missing_devices.is_empty()).then(|| {
        let missing = root.missing_devices.join(", ");
        format!("{CONTAINER_ROOT}/dev lacks {missing}, which container {DEVICE_NODES} of pod {} creates", pod.name)
    })
}

/// Returns the message for a loaded driver whose container is not running.
fn down(pod: Option<&PodFacts>) -> String {
    let state = match pod {
        None => "has no pod".to_owned(),
        Some(pod) => match pod.containers.first().map(|container| &container.state) {
            Some(ContainerState::Waiting { reason, .. }) if !reason.is_empty() => {
                format!("of pod {} is waiting: {reason}", pod.name)
            }
            Some(ContainerState::Ended(exit)) => {
                format!("of pod {} terminated with exit code {}", pod.name, exit.code)
            }
            _ => format!("of pod {} is not running", pod.name),
        },
    };
    format!(
        "the driver's container {state}; running GPU pods keep their GPUs, but no other GPU pod can start on this node until the container is running again"
    )
}
