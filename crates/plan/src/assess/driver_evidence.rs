//! Evidence against a driver that allocatable GPUs seem to prove. Kubelet goes on offering what a device plugin has once
//! registered, also when no container could be started with it any more.

use gpu_operator_crd::{
    policy::Stage,
    reason::Reason,
    report::{CONTAINER_ROOT, DriverFacts},
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::member::Member,
    container_names::DEVICE_NODES,
    desired::driver::choice::DriverChoice,
    settings::ROOT_GRACE,
    time::older,
    world::{ContainerState, PodFacts},
};

/// Returns what speaks against the driver of a node that has NVIDIA's container, if anything does. In the middle of a
/// move there is no need for it: every stage is proven then.
#[must_use]
pub fn against_driver(member: &Member<'_>, now: Timestamp) -> Option<(Reason, String)> {
    let facts = &member.report()?.driver;
    let pod = member.pod(Stage::Driver);
    // A driver that waits for its turn may be of another source than the one that the node has.
    let wants_nvidias = || matches!(member.driver(), Some(DriverChoice::Container { .. }));
    if !pod.map_or_else(wants_nvidias, PodFacts::is_nvidia_driver)
        || member.rollout().is_some()
        || member.have.driver.is_none()
    {
        return None;
    }
    let Some((pod, since)) = pod.and_then(|pod| Some((pod, pod.running_since()?))) else {
        return facts.loaded.is_some().then(|| (Reason::DriverDown, down(pod)));
    };
    let lacks = lacking(facts, pod)?;
    // A container that has just started puts its root there, and until a plugin has found it nothing is lost.
    let was_there = member.pod(Stage::DevicePlugin).is_some_and(PodFacts::has_started);
    let known = member.status().is_some_and(|status| status.reason == Some(Reason::DriverRootIncomplete));
    let is_lost = known || was_there && older(since, ROOT_GRACE, now);
    let reason = if is_lost { Reason::DriverRootIncomplete } else { Reason::DriverInstalling };
    let message = match reason {
        Reason::DriverInstalling => format!("pod {} installs the driver: {lacks}", pod.name),
        _ => {
            format!("{lacks}, so that no GPU pod can start; delete pod {} to have the driver put there again", pod.name)
        }
    };
    Some((reason, message))
}

/// What the driver's root lacks of what programs need.
fn lacking(facts: &DriverFacts, pod: &PodFacts) -> Option<String> {
    // A plugin that runs has found one loaded, and keeps it so: a report that knows of none is of before.
    let loaded = facts.loaded.as_ref()?;
    let root = facts.installed.iter().find(|found| found.root == CONTAINER_ROOT && found.version == *loaded);
    let Some(root) = root else {
        return Some(format!(
            "driver {loaded} is loaded, but there is no libnvidia-ml.so.{loaded} under {CONTAINER_ROOT}"
        ));
    };
    (!root.missing_devices.is_empty()).then(|| {
        let missing = root.missing_devices.join(", ");
        format!("{CONTAINER_ROOT}/dev lacks {missing}, which container {DEVICE_NODES} of pod {} makes", pod.name)
    })
}

fn down(pod: Option<&PodFacts>) -> String {
    let state = match pod {
        None => "has no pod".to_owned(),
        Some(pod) => match pod.containers.first().map(|container| &container.state) {
            Some(ContainerState::Waiting { reason, .. }) if !reason.is_empty() => {
                format!("of pod {} is waiting: {reason}", pod.name)
            }
            Some(ContainerState::Ended(exit)) => format!("of pod {} has ended with exit code {}", pod.name, exit.code),
            _ => format!("of pod {} is not running", pod.name),
        },
    };
    format!(
        "the driver's container {state}; running GPU pods keep their GPUs, and no other starts here until it is back"
    )
}
