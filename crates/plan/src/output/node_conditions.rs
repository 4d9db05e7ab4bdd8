//! The conditions of a Node: the health of its GPUs and, if the policy requests it, whether they are ready. One request applies both.

use gpu_operator_crd::{
    GpuNodeStatus, NodeConditionType, health::HealthState, keys, policy::Stage, reason::Reason, report::NvmlState,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    assess::member::Member,
    clock::Clock,
    note::shown,
    output::{body::Body, urgency, write::Write},
    settings::GRACE,
    world::{NodeFacts, OwnCondition, OwnConditions, PodFacts},
};

pub fn is_clean(node: &NodeFacts) -> bool {
    node.own_conditions.is_empty()
}

pub fn removal(node: &NodeFacts) -> Option<Write> {
    (!is_clean(node)).then(|| Write::new(&node.name, Body::Conditions(OwnConditions::new())))
}

pub fn write(
    member: &Member<'_>,
    health: Option<OwnCondition>,
    status: &GpuNodeStatus,
    clock: &Clock,
) -> Option<Write> {
    let present = &member.node.own_conditions;
    let known = |kind| present.get(kind).cloned();
    let healthy = match health {
        // It is written from the first problem on, so a healthy fleet costs no write.
        Some(healthy) => {
            Some(healthy).filter(|new| present.contains_key(keys::HEALTH_CONDITION) || new.status != "True")
        }
        None => known(keys::HEALTH_CONDITION),
    };
    let ready = match member.policy.spec.readiness.node_condition {
        false => None,
        // The status of a node whose report is about to arrive is not written either.
        true if member.is_awaited(clock) => known(keys::READY_CONDITION),
        true => ready(member, status, clock),
    };
    let wanted = [(keys::HEALTH_CONDITION, healthy), (keys::READY_CONDITION, ready)];
    let wanted: OwnConditions = wanted.into_iter().filter_map(|(kind, wanted)| Some((kind, wanted?))).collect();
    let changes = keys::NODE_CONDITIONS.iter().filter_map(|kind| match (present.get(kind), wanted.get(kind)) {
        (None, None) => None,
        (Some(before), Some(after)) if before.says(after) => None,
        (before, after) => Some(urgency::of_condition(before, after)),
    });
    let urgency = changes.min()?;
    Some(Write { urgency, ..Write::new(&member.node.name, Body::Conditions(wanted)) })
}

/// Nothing is known of a node that is away, or whose probe has not reported since its boot, unless its GPUs are allocatable.
fn ready(member: &Member<'_>, status: &GpuNodeStatus, clock: &Clock) -> Option<OwnCondition> {
    let is_ready = |condition: &&Condition| condition.type_ == NodeConditionType::Ready.as_str();
    let Condition { reason, message, .. } = status.conditions.iter().find(is_ready)?;
    let is_unknown = status.reason().is_some_and(Reason::is_away) || member.report.is_none();
    let written = match (status.is_ready(), is_unknown) {
        (true, _) => "True",
        (false, true) => "Unknown",
        (false, false) => "False",
    };
    let before = member.node.own_conditions.get(keys::READY_CONDITION).filter(|before| before.status == written);
    let since = before.and_then(|before| before.since).unwrap_or_else(|| clock.now());
    Some(OwnCondition {
        status: written.to_owned(),
        reason: reason.clone(),
        message: message.clone(),
        since: Some(since),
    })
}

pub fn health_condition(member: &Member<'_>, clock: &Clock) -> Option<OwnCondition> {
    let state = member.health.state?;
    let (status, reason) = match state {
        HealthState::Unhealthy => ("False", Reason::GpuUnhealthy),
        HealthState::Unknown => ("Unknown", Reason::HealthUnknown),
        HealthState::Degraded | HealthState::Recovering => ("True", Reason::GpuDegraded),
        HealthState::Healthy => ("True", Reason::AllGpusHealthy),
    };
    let note = member.health.note.as_ref().map(|note| note.message.clone());
    // Without a note, those that must not be used are missing.
    let message = note.unwrap_or_else(|| match member.health.unhealthy {
        0 => "no GPU has a known problem".to_owned(),
        1 => "1 GPU is missing from the PCI bus".to_owned(),
        missing => format!("{missing} GPUs are missing from the PCI bus"),
    });
    let reason = reason.as_str();
    let before = member.node.own_conditions.get(keys::HEALTH_CONDITION);
    // Each reason is a severity: whatever acts on a degraded GPU after some time counts from the degradation, not from the end of an
    // earlier, worse problem.
    let same = before.filter(|before| before.status == status && before.reason == reason);
    let since = same.and_then(|before| before.since).unwrap_or_else(|| clock.now());
    Some(OwnCondition {
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: shown(&message),
        since: Some(since),
    })
}

/// Returns the device plugin's pod if it withholds GPUs that recovered after its start: plugins do not offer a recovered GPU again. A new
/// pod starts after the recovery, so it is restarted only once for each.
pub fn plugin_to_restart<'w>(member: &Member<'w>, clock: &Clock) -> Option<&'w PodFacts> {
    let pod = member.pod(Stage::DevicePlugin).filter(|pod| pod.running())?;
    let started = pod.running_since()?.reported();
    let report = member.report.filter(|report| report.nvml.state == NvmlState::Answering)?;
    let is_usable = |state| matches!(state, HealthState::Healthy | HealthState::Degraded);
    let recovered =
        report.gpus.iter().filter(|gpu| is_usable(gpu.health.state)).filter_map(|gpu| gpu.health.since.as_ref());
    let recovered = recovered.map(|since| since.0).filter(|since| *since > started).max()?;
    let withheld = member.node.ready && member.expected_resources.as_ref()?.lacks(&member.served).is_some();
    // Kubelet and plugin have a grace period to detect the recovery.
    (withheld && member.rollout().is_none() && clock.passed(recovered, GRACE)).then_some(pod)
}
