//! Nodes as their policy counts them.

use std::collections::BTreeMap;

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    GpuNodeStatus, NodeName, Phase, PoolName, Reason, keys,
    policy_status::{GpuTotals, NodeCounts},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    assess::member::Member, desired::driver::DriverChoice, inventory::membership::UnreadableNode, note::Fault,
    rollout::update, world::NodeFacts,
};

/// In characters.
const MAX_MESSAGE: usize = 512;

/// Why a node does not count towards readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    Deleting,
    NotReady,
    /// Not by this operator.
    Cordoned,
    /// A DRA driver allocates its GPUs.
    Claims,
}

impl Exclusion {
    fn of(node: &NodeFacts, reason: Reason) -> Option<Self> {
        if node.deleting {
            Some(Self::Deleting)
        } else if !node.ready {
            Some(Self::NotReady)
        } else if node.cordoned && !node.own_cordon {
            Some(Self::Cordoned)
        } else {
            reason.counts_apart().then_some(Self::Claims)
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deleting => "being deleted",
            Self::NotReady => "NotReady",
            Self::Cordoned => "cordoned",
            Self::Claims => "served by a DRA driver",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverVersion<'m> {
    /// At present, as after a reboot.
    Unknown,
    /// This operator does not determine it.
    Other,
    Is(&'m str),
}

impl<'m> DriverVersion<'m> {
    fn of(member: &'m Member<'_>) -> Self {
        match member.driver().and_then(DriverChoice::version) {
            Some(version) => Self::Is(version),
            None if member.target.is_unknown() => Self::Unknown,
            None => Self::Other,
        }
    }
}

/// Only a part of a node's status, because all nodes are held in memory at once.
#[derive(Clone, Debug)]
pub struct Counted<'m> {
    pub node: &'m NodeName,
    pub pool: &'m PoolName,
    pub model: Option<&'m str>,
    /// Why it does not count towards readiness.
    pub excluded: Option<Exclusion>,
    /// Whether it has the desired revision.
    pub current: bool,
    /// Whether an update of it is under way.
    pub in_turn: bool,
    pub driver_version: DriverVersion<'m>,
    pub fault: Option<&'m Fault>,
    /// By its present or pending status.
    pub ready: bool,
    pub phase: Phase,
    pub reason: Reason,
    pub since: Option<Time>,
    /// Empty if there is no problem.
    pub message: String,
    pub gpus: GpuTotals,
}

impl<'m> Counted<'m> {
    /// `status` is present or pending.
    pub fn of(member: &'m Member<'_>, status: GpuNodeStatus) -> Self {
        let reason = status.reason().unwrap_or(Reason::WaitingForReport);
        let in_turn = member.rollout().is_some();
        let has_problem = !status.is_ready() || reason.is_note();
        Self {
            node: &member.node.name,
            pool: &member.pool.name,
            model: member.model(),
            excluded: Exclusion::of(member.node, reason),
            // A node without another revision is being installed, not updated.
            current: !update::is_outdated(member),
            in_turn,
            driver_version: DriverVersion::of(member),
            fault: member.target.fault(),
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
        }
    }

    /// A node whose GpuNode cannot be parsed never counts better than if it could.
    pub fn unreadable(found: &'m UnreadableNode<'_>) -> Self {
        let (node, gpus) = (found.node, found.node.allocatable.total());
        let name = &node.name;
        Self {
            node: name,
            pool: &found.pool,
            model: node.labels.get(keys::MODEL).map(Interned::as_str),
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
        }
    }

    pub fn failed(&self) -> bool {
        !self.ready && self.reason.is_failure()
    }

    /// Neither ready, nor failed, nor excluded.
    pub fn in_progress(&self) -> bool {
        self.excluded.is_none() && !self.ready && !self.failed()
    }
}

pub fn count<'c, 'm: 'c>(nodes: impl Iterator<Item = &'c Counted<'m>>) -> (NodeCounts, GpuTotals) {
    let (mut counts, mut gpus) = (NodeCounts::default(), GpuTotals::default());
    for node in nodes {
        counts.total += 1;
        let class = if node.excluded.is_some() {
            &mut counts.excluded
        } else if node.ready {
            &mut counts.ready
        } else if node.failed() {
            &mut counts.failed
        } else {
            &mut counts.progressing
        };
        *class += 1;
        counts.updating += u32::from(node.in_turn && node.in_progress());
        counts.outdated += u32::from(!node.current && node.excluded.is_none());
        gpus.expected += node.gpus.expected;
        gpus.allocatable += node.gpus.allocatable;
        gpus.unhealthy += node.gpus.unhealthy;
        gpus.degraded += node.gpus.degraded;
        gpus.unknown += node.gpus.unknown;
    }
    (counts, gpus)
}

/// In the order of the states, such as `2 Driver, 1 Toolkit`.
pub fn by_state<S: Ord>(states: impl Iterator<Item = S>, name: impl Fn(&S) -> &'static str) -> String {
    let mut counts: BTreeMap<S, u32> = BTreeMap::new();
    for state in states {
        *counts.entry(state).or_default() += 1;
    }
    counts.iter().map(|(state, count)| format!("{count} {}", name(state))).collect::<Vec<_>>().join(", ")
}
