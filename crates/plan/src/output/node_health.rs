//! The health of a node's GPUs as a condition. And recovery: device plugins do not offer a recovered GPU again, so they are restarted
//! once their GPUs have recovered.

use gpu_operator_crd::{health::HealthState, keys, policy::Stage, reason::Reason, report::NvmlState};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::member::Member,
    note::shown,
    settings::GRACE,
    time::older,
    world::{OwnCondition, PodFacts},
};

/// Returns the health of the node's GPUs as a condition, if it is known.
pub fn condition(member: &Member<'_>, now: Timestamp) -> Option<OwnCondition> {
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
    let since = same.and_then(|before| before.since).unwrap_or(now);
    Some(OwnCondition {
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: shown(&message),
        since: Some(since),
    })
}

/// Returns the device plugin's pod if it withholds recovered GPUs: they recovered after the pod started, and they are
/// still not allocatable. A new pod starts after the recovery, so it is restarted only once for each recovery.
pub fn plugin_to_restart<'w>(member: &Member<'w>, now: Timestamp) -> Option<&'w PodFacts> {
    let pod = member.pod(Stage::DevicePlugin).filter(|pod| pod.running())?;
    let started = pod.running_since()?.reported();
    let report = member.report.filter(|report| report.nvml.state == NvmlState::Answering)?;
    let is_usable = |state| matches!(state, HealthState::Healthy | HealthState::Degraded);
    let recovered =
        report.gpus.iter().filter(|gpu| is_usable(gpu.health.state)).filter_map(|gpu| gpu.health.since.as_ref());
    let recovered = recovered.map(|since| since.0).filter(|since| *since > started).max()?;
    let withheld = member.node.ready && member.expected_resources.as_ref()?.lacks(&member.node.allocatable).is_some();
    // Kubelet and plugin have a grace period to detect the recovery.
    (withheld && member.rollout().is_none() && older(recovered, GRACE, now)).then_some(pod)
}
