//! GPU health on the Node itself: a condition, and a taint if the policy enables it. And recovery: device plugins do
//! not offer a recovered GPU again, so they are restarted once their GPUs have recovered.

use gpu_operator_crd::{health::HealthState, policy::Stage, reason::Reason, report::NvmlState};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::member::Member,
    inventory::taint_records,
    note::shown,
    output::{
        body::{Body, TaintWrite},
        write::Write,
    },
    settings::GRACE,
    time::older,
    world::{HealthCondition, NodeFacts, PodFacts, TaintFact},
};

/// Returns whether the node has neither a condition nor a taint of this operator.
#[must_use]
pub fn is_clean(node: &NodeFacts) -> bool {
    node.health_condition.is_none() && has_only(node, None)
}

/// Returns the writes that remove condition and taint.
pub fn removal(node: &NodeFacts) -> impl Iterator<Item = Write> {
    let condition = node.health_condition.is_some().then_some(Body::Condition(None));
    let taint = (!has_only(node, None)).then(|| write(node, None));
    condition.into_iter().chain(taint).map(|body| Write::new(&node.name, body))
}

/// Returns the writes for a node of a policy, given the health of its GPUs.
pub fn of(member: &Member<'_>, health: Option<HealthCondition>) -> impl Iterator<Item = Write> {
    let node = member.node;
    let wanted = health.filter(|wanted| match &node.health_condition {
        Some(present) => !present.says(wanted),
        // The condition is written from the first problem on, so a healthy fleet costs no write.
        None => wanted.status != "True",
    });
    let condition = wanted.map(|wanted| Body::Condition(Some(wanted)));
    let taint = wanted_taint(member);
    // Until its key is listed in the policy's status, which is written first, the node's taint stays.
    let may_change = taint.as_ref().is_none_or(|taint| taint_records::is_published(member.policy, &taint.key));
    let changes = may_change && !has_only(node, taint.as_ref());
    condition.into_iter().chain(changes.then(|| write(node, taint))).map(|body| Write::new(&node.name, body))
}

fn write(node: &NodeFacts, own: Option<TaintFact>) -> Body {
    Body::Taint(TaintWrite { own, replaced: node.own_taint.clone() })
}

/// Returns the health of the node's GPUs as a condition, if it is known.
#[must_use]
pub fn condition(member: &Member<'_>, now: Timestamp) -> Option<HealthCondition> {
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
    let before = member.node.health_condition.as_ref().filter(|before| before.status == status);
    let since = before.and_then(|before| before.since).unwrap_or(now);
    Some(HealthCondition {
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message: shown(&message),
        since: Some(since),
    })
}

/// Returns the taint that the node should have from this operator.
fn wanted_taint(member: &Member<'_>) -> Option<TaintFact> {
    let wanted = TaintFact::from(member.health_policy.on_unhealthy.taint()?);
    let taints = &member.node.taints;
    let applies = match member.health.state {
        Some(HealthState::Unhealthy) => true,
        Some(HealthState::Healthy | HealthState::Degraded) => false,
        // While the health is uncertain, a tainted node stays tainted.
        Some(HealthState::Recovering | HealthState::Unknown) | None => {
            taints.iter().any(|taint| member.node.owns(taint))
        }
    };
    // A taint of another writer with the same key and effect stays that writer's.
    let is_set = taints.iter().any(|taint| taint.same(&wanted) && !member.node.owns(taint));
    (applies && !is_set).then_some(wanted)
}

/// Returns whether the node has this taint from this operator, and no other.
fn has_only(node: &NodeFacts, taint: Option<&TaintFact>) -> bool {
    node.own_taint.as_ref() == taint && node.taints.iter().filter(|present| node.owns(present)).eq(taint)
}

/// Returns the device plugin's pod if it withholds recovered GPUs: they recovered after the pod started, and they are
/// still not allocatable. A new pod starts after the recovery, so it is restarted only once for each recovery.
#[must_use]
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
