//! The verdict on a node: its phase, and why; and the verdicts on a stage's pod that does not exist or does not run.

use gpu_operator_crd::{NodeName, Phase, keys, policy::Stage, reason::Reason};

use crate::{
    assess::{
        member::{Member, Wait},
        pod_failure::{self, pod_failure, unmounted},
    },
    clock::Clock,
    container_names::DEVICE_NODES,
    ground::Ground,
    inventory::gpus,
    revision::daemon_set_name,
    settings::STAGE_GRACE,
    world::{ContainerState, PodFacts},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub phase: Phase,
    pub reason: Reason,
    pub message: String,
    pub waits_on: Vec<String>,
}

impl Verdict {
    pub fn new(phase: Phase, reason: Reason, message: impl Into<String>) -> Self {
        Self { phase, reason, message: message.into(), waits_on: Vec::new() }
    }

    /// A GPU that is missing or unhealthy is not caused by an update.
    pub fn lacks_a_gpu(&self) -> bool {
        matches!(self.reason, Reason::GpuMissing | Reason::GpuUnhealthy)
    }
}

/// The cause is the pod that it replaces, or a failure.
pub fn stage_pod_failure(
    member: &Member<'_>,
    stage: Stage,
    pod: &PodFacts,
    phase: Phase,
    clock: &Clock,
) -> Option<Verdict> {
    let before = member.pods_of(stage).find(|other| other.name != pod.name);
    if let Some(before) = before.filter(|_| pod.unschedulable.is_some()) {
        let message = format!("pod {} is waiting for pod {} to terminate", pod.name, before.name);
        return Some(Verdict::new(phase, Reason::PodStarting, message));
    }
    pod_failure(pod, clock).map(|(reason, message)| Verdict::new(phase, reason, message))
}

pub fn runs<'w>(
    member: &Member<'w>,
    ground: &Ground<'_>,
    stage: Stage,
    clock: &Clock,
) -> Result<&'w PodFacts, Verdict> {
    let phase = stage.phase();
    let pod = member.pod(stage).ok_or_else(|| no_pod(member, ground, stage, phase, clock))?;
    if let Some(verdict) = stage_pod_failure(member, stage, pod, phase, clock) {
        return Err(verdict);
    }
    if pod.running() { Ok(pod) } else { Err(starting(member, ground, phase, pod, clock)) }
}

pub fn gpu_missing(member: &Member<'_>, phase: Phase) -> Option<Verdict> {
    let (expected, on_bus) = (member.expected?, member.on_bus());
    let gone = member.missing_from().join(", ");
    let mut details = if gone.is_empty() { String::new() } else { format!("; missing: {gone}") };
    details.extend(gpus::passed_through(member.last_report()).into_iter().flat_map(|given| ["; ".to_owned(), given]));
    (on_bus < expected).then(|| {
        let advice = missing_advice(&member.node.name, on_bus);
        let message = format!("{on_bus} of {expected} expected GPUs are on the PCI bus{details}. {advice}");
        Verdict::new(phase, Reason::GpuMissing, message)
    })
}

fn missing_advice(node: &NodeName, on_bus: u32) -> String {
    let count = keys::GPU_COUNT;
    // The expected number cannot be zero.
    if on_bus == 0 {
        return format!(
            "Search the kernel log for NVRM/Xid; if fewer GPUs are expected, correct gpusPerNode, or the node's annotation {count}"
        );
    }
    format!(
        "If one failed, search the kernel log for NVRM/Xid; if {on_bus} is right, set gpusPerNode: {on_bus} or run: kubectl annotate --overwrite node {node} {count}={on_bus}"
    )
}

/// The node has a taint that is not tolerated, the API server rejects the pod, or the pod is about to be created.
pub fn no_pod(member: &Member<'_>, ground: &Ground<'_>, stage: Stage, phase: Phase, clock: &Clock) -> Verdict {
    if let Some(taint) = member.untolerated {
        let message = format!(
            "taint {taint} of the node is not tolerated, so no operand is scheduled there; add a toleration for it to the tolerations of defaults or of its pool, or remove them to tolerate every taint"
        );
        return Verdict::new(phase, Reason::UntoleratedTaint, message);
    }
    let revision = member.have.get(stage);
    let refusal = revision.and_then(|revision| ground.refusals.get(daemon_set_name(stage, revision).as_str()));
    let waiting = format!("waiting for the pod of the {}", stage.title());
    // Another error may pass.
    let wait = Wait { passing: Reason::PodStarting, failure: Reason::PodsForbidden, grace: STAGE_GRACE };
    match refusal {
        Some(&words) if pod_failure::is_decided(words) || member.has_waited(phase, wait, clock) => {
            Verdict::new(phase, Reason::PodsForbidden, words)
        }
        Some(words) => Verdict::new(
            phase,
            Reason::PodStarting,
            format!("{waiting}, which the API server has not created: {words}"),
        ),
        None => Verdict::new(phase, Reason::PodStarting, waiting),
    }
}

/// Names the current container, or after a while the volume that kubelet cannot mount.
pub fn starting(member: &Member<'_>, ground: &Ground<'_>, phase: Phase, pod: &PodFacts, clock: &Clock) -> Verdict {
    if let Some((reason, message)) = unmounted(ground, pod)
        && member.has_waited(phase, Wait { passing: Reason::PodStarting, failure: reason, grace: STAGE_GRACE }, clock)
    {
        return Verdict::new(phase, reason, message);
    }
    let next = pod
        .init
        .iter()
        .chain(&pod.containers)
        .filter(|container| container.name != DEVICE_NODES || container.running_since().is_none())
        .find(|container| !matches!(container.state, ContainerState::Ended(ref exit) if exit.code == 0));
    let at = next.map_or_else(String::new, |container| format!(", at container {}", container.name));
    Verdict::new(phase, Reason::PodStarting, format!("pod {} is starting{at}", pod.name))
}
