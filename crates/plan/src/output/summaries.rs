//! The summaries of nodes, for their policy.

use std::sync::Arc;

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{GpuNodeStatus, Phase, Reason, keys, policy_status::GpuTotals};

use crate::{
    assess::member::Member,
    desired::driver::DriverChoice,
    inventory::membership::UnreadableNode,
    summary::{DriverVersion, Exclusion, NodeSummary},
};

/// In characters.
const MAX_MESSAGE: usize = 512;

fn driver_version(member: &Member<'_>) -> DriverVersion {
    match member.driver().and_then(DriverChoice::version) {
        Some(version) => DriverVersion::Is(version.to_owned()),
        None if member.target.is_unknown() => DriverVersion::Unknown,
        None => DriverVersion::Other,
    }
}

/// `status` is present or pending.
pub fn of(member: &Member<'_>, status: GpuNodeStatus) -> Arc<NodeSummary> {
    let reason = status.reason().unwrap_or(Reason::WaitingForReport);
    let in_turn = member.rollout().is_some();
    let has_problem = !status.is_ready() || reason.is_note();
    Arc::new(NodeSummary {
        node: member.node.name.clone(),
        pool: member.pool.name.clone(),
        model: member.model().map(str::to_owned),
        excluded: Exclusion::of(member.node, reason),
        // A node without another revision is being installed, not updated.
        current: !member.is_outdated(),
        in_turn,
        driver_version: driver_version(member),
        fault: member.target.fault().cloned(),
        ready: status.is_ready(),
        phase: status.phase,
        reason,
        since: status.since,
        message: if has_problem { status.message.chars().take(MAX_MESSAGE).collect() } else { String::new() },
        gpus: GpuTotals {
            expected: status.gpus.expected.filter(|_| !reason.counts_apart()).unwrap_or_default(),
            allocatable: status.gpus.allocatable,
            unhealthy: status.gpus.unhealthy,
            degraded: status.gpus.degraded,
            unknown: status.gpus.unknown,
        },
    })
}

/// A node whose GpuNode cannot be parsed never counts better than if it could.
pub fn of_unreadable(found: &UnreadableNode<'_>) -> Arc<NodeSummary> {
    let (node, gpus) = (found.node, found.node.allocatable.total());
    let name = &node.name;
    Arc::new(NodeSummary {
        node: name.clone(),
        pool: found.pool.clone(),
        model: node.labels.get(keys::MODEL).map(Interned::to_string),
        excluded: Exclusion::of(node, Reason::GpuNodeUnreadable),
        current: true,
        in_turn: false,
        driver_version: DriverVersion::Unknown,
        fault: None,
        ready: false,
        phase: Phase::Discovery,
        reason: Reason::GpuNodeUnreadable,
        since: None,
        message: format!(
            "GpuNode {name} cannot be parsed, so the node is left unchanged; install the version of the operator that wrote it, or delete it (kubectl delete gpunode {name}): the probe creates it again"
        ),
        gpus: GpuTotals { expected: gpus, unknown: gpus, ..GpuTotals::default() },
    })
}
