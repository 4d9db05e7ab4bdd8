//! What a Node itself shows of its GPUs' health: a condition, and where the policy wants it a taint. And the way back: a
//! device plugin never takes a GPU back by itself, so it is started anew once its GPUs are well again.

use gpu_operator_crd::{health::HealthState, keys, policy::Stage, reason::Reason, report::NvmlState};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::{
    assess::member::Member,
    note::clip,
    settings::GRACE,
    time::older,
    world::{HealthCondition, NodeFacts},
};

/// What is to be written of a Node's health.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeHealthWrite {
    /// The condition: to write it, or to take it off.
    pub condition: Option<Option<HealthCondition>>,
    /// The taint: to put it on, or to take it off.
    pub taint: Option<bool>,
}

impl NodeHealthWrite {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.condition.is_none() && self.taint.is_none()
    }
}

/// What a node without a policy shows: nothing of ours.
#[must_use]
pub fn none(node: &NodeFacts) -> NodeHealthWrite {
    NodeHealthWrite {
        condition: node.health_condition.is_some().then_some(None),
        taint: is_tainted(node).then_some(false),
    }
}

/// What a node of a policy shows.
#[must_use]
pub fn of(member: &Member<'_>, now: Timestamp) -> NodeHealthWrite {
    let present = &member.node.health_condition;
    let wanted = condition(member, now).filter(|wanted| match present {
        Some(present) => !present.says(wanted),
        // From the first trouble on: a fleet that is well costs no write.
        None => wanted.status != "True",
    });
    let (tainted, wants_taint) = (is_tainted(member.node), wants_taint(member));
    NodeHealthWrite { condition: wanted.map(Some), taint: wants_taint.filter(|wants| *wants != tainted) }
}

fn condition(member: &Member<'_>, now: Timestamp) -> Option<HealthCondition> {
    let state = member.health.state?;
    let (status, reason) = match state {
        HealthState::Unhealthy => ("False", Reason::GpuUnhealthy),
        HealthState::Unknown => ("Unknown", Reason::HealthUnknown),
        HealthState::Degraded | HealthState::Recovering => ("True", Reason::GpuDegraded),
        HealthState::Healthy => ("True", Reason::AllGpusHealthy),
    };
    let note = member.health.note.as_ref().map(|note| note.message.clone());
    let message = note.unwrap_or_else(|| match member.missing_from().len() {
        0 => "no GPU has a known problem".to_owned(),
        missing => format!("{missing} GPUs are missing from the PCI bus"),
    });
    let before = member.node.health_condition.as_ref().filter(|before| before.status == status);
    let since = before.and_then(|before| before.since).unwrap_or(now);
    Some(HealthCondition {
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message: clip(&message),
        since: Some(since),
    })
}

/// Whether the taint should be on. Nothing while that is not known: it goes on and off on proof alone.
fn wants_taint(member: &Member<'_>) -> Option<bool> {
    if !member.health_policy.taint_unhealthy.unwrap_or_default() {
        return Some(false);
    }
    match member.health.state? {
        HealthState::Unhealthy => Some(true),
        HealthState::Healthy | HealthState::Degraded => Some(false),
        HealthState::Recovering | HealthState::Unknown => None,
    }
}

fn is_tainted(node: &NodeFacts) -> bool {
    node.taints.iter().any(|taint| taint.key == keys::UNHEALTHY_TAINT)
}

/// The device plugin's pod, if it withholds GPUs that are well again: they got well after it started, and the scheduler
/// still cannot give them out. A new one is younger than that, so that this happens once for each recovery.
#[must_use]
pub fn plugin_to_restart(member: &Member<'_>, now: Timestamp) -> Option<String> {
    let pod = member.pod(Stage::DevicePlugin).filter(|pod| pod.running())?;
    let started = pod.running_since()?;
    let report = member.report().filter(|report| report.nvml.state == NvmlState::Answering)?;
    let well = |state| matches!(state, HealthState::Healthy | HealthState::Degraded);
    let recovered = report.gpus.iter().filter(|gpu| well(gpu.health.state)).filter_map(|gpu| gpu.health.since.as_ref());
    let recovered = recovered.map(|since| since.0).filter(|since| *since > started).max()?;
    let withheld = member.node.ready && member.promise.as_ref()?.lacks(&member.node.allocatable).is_some();
    // Kubelet and plugin have a moment to find out by themselves.
    (withheld && member.rollout().is_none() && older(recovered, GRACE, now)).then(|| pod.name.clone())
}
