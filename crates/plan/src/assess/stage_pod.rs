//! The pod of a stage: what keeps it from running, where nothing else does.

use gpu_operator_crd::{Phase, keys, policy::Stage, reason::Reason};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{
        member::Member,
        pod_failure::{self, hold_up},
        verdict::Verdict,
    },
    container_names::DEVICE_NODES,
    inventory::gpus,
    revision::{self, daemon_set_name},
    world::{ContainerState, PodFacts, Role, World},
};

/// What holds a stage's pod up: the one that it takes the place of, or something that is the matter.
#[must_use]
pub fn stage_hold_up(
    member: &Member<'_>,
    stage: Stage,
    pod: &PodFacts,
    phase: Phase,
    now: Timestamp,
) -> Option<Verdict> {
    let before = member.pods_of(stage).find(|other| other.name != pod.name);
    if let Some(before) = before.filter(|_| pod.unschedulable.is_some()) {
        let message = format!("pod {} waits for pod {} to end", pod.name, before.name);
        return Some(Verdict::new(phase, Reason::PodStarting, message));
    }
    hold_up(pod, now).map(|(reason, message)| Verdict::new(phase, reason, message))
}

/// The stage's pod, once it runs.
pub fn runs<'w>(member: &Member<'w>, world: &World, stage: Stage, now: Timestamp) -> Result<&'w PodFacts, Verdict> {
    let phase = stage.phase();
    let pod = member.pod(stage).ok_or_else(|| no_pod(member, world, stage, phase))?;
    if let Some(verdict) = stage_hold_up(member, stage, pod, phase, now) {
        return Err(verdict);
    }
    if pod.running() { Ok(pod) } else { Err(starting(phase, pod)) }
}

/// Whether the bus shows fewer GPUs than the node should have.
#[must_use]
pub fn gpu_missing(member: &Member<'_>, phase: Phase) -> Option<Verdict> {
    let (expected, on_bus) = (member.expected?, member.on_bus());
    let gone = member.missing_from().join(", ");
    let mut last = if gone.is_empty() { String::new() } else { format!("; last seen and gone: {gone}") };
    last.extend(gpus::passed_through(member.report()).into_iter().flat_map(|given| ["; ".to_owned(), given]));
    (on_bus < expected).then(|| {
        let message = format!(
            "{on_bus} of {expected} GPUs are on the PCI bus{last}; look for GPUs that fell off in the kernel log, or, if fewer are meant, correct its pool's gpusPerNode or annotate the node with {}",
            keys::GPU_COUNT
        );
        Verdict::new(phase, Reason::GpuMissing, message)
    })
}

/// A stage without a pod: either it is on its way, or the API server refuses it, or the node keeps it off.
#[must_use]
pub fn no_pod(member: &Member<'_>, world: &World, stage: Stage, phase: Phase) -> Verdict {
    if let Some(taint) = member.untolerated {
        let message = format!(
            "the node's taint {taint} keeps operands off; add a toleration of it to defaults.tolerations, or leave those out to tolerate every taint"
        );
        return Verdict::new(phase, Reason::UntoleratedTaint, message);
    }
    let group = revision::group(&member.have, stage);
    let refusal = group.and_then(|group| {
        let of_group = |pod: &PodFacts| pod.role == Role::Operand(stage) && pod.group.as_deref() == Some(group);
        pod_failure::refusal(world, &daemon_set_name(stage, group), of_group)
    });
    match refusal {
        Some(words) => Verdict::new(phase, Reason::PodsForbidden, words),
        None => Verdict::new(phase, Reason::PodStarting, format!("waiting for the {} pod", stage.as_str())),
    }
}

/// The verdict on a pod that is starting.
#[must_use]
pub fn starting(phase: Phase, pod: &PodFacts) -> Verdict {
    let next = pod
        .init
        .iter()
        .chain(&pod.containers)
        .filter(|container| container.name != DEVICE_NODES || container.running_since().is_none())
        .find(|container| !matches!(container.state, ContainerState::Ended(ref exit) if exit.code == 0));
    let at = next.map_or_else(String::new, |container| format!(", at container {}", container.name));
    Verdict::new(phase, Reason::PodStarting, format!("pod {} is starting{at}", pod.name))
}
