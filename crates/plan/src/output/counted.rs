//! Nodes as their policy counts them.

use std::collections::BTreeMap;

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    GpuNodeStatus, NodeName, Phase, PoolName, Reason, keys,
    policy_status::{GpuTotals, NodeCounts},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    assess::member::Member,
    desired::{driver::choice::DriverChoice, fault::Fault},
    inventory::unreadable::UnreadableNode,
    rollout::turn,
    world::NodeFacts,
};

/// The maximum length of a node's message, in characters.
const MAX_MESSAGE: usize = 512;

/// Why a node does not count towards readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    /// The Node is being deleted.
    Deleting,
    /// The Node is not Ready.
    NotReady,
    /// The Node is cordoned, and not by this operator.
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

    /// Returns the state of such nodes, for messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deleting => "being deleted",
            Self::NotReady => "NotReady",
            Self::Cordoned => "cordoned",
            Self::Claims => "served by a DRA driver",
        }
    }
}

/// The driver version that a node should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverVersion<'m> {
    /// It is not known at present, as after a reboot.
    Unknown,
    /// This operator does not determine it.
    Other,
    Is(&'m str),
}

impl<'m> DriverVersion<'m> {
    fn of(member: &'m Member<'_>) -> Self {
        match member.driver().and_then(DriverChoice::version) {
            Some(version) => Self::Is(version),
            None if member.desired.is_unknown() => Self::Unknown,
            None => Self::Other,
        }
    }
}

/// One node as its policy counts it: only a part of its status, because all nodes are held in memory at once.
#[derive(Clone, Debug)]
pub struct Counted<'m> {
    pub node: &'m NodeName,
    pub pool: &'m PoolName,
    /// Its model, if known.
    pub model: Option<&'m str>,
    /// Why it does not count towards readiness, if it does not.
    pub excluded: Option<Exclusion>,
    /// Whether it has the desired revision.
    pub current: bool,
    /// Whether it is in its turn of a rollout.
    pub in_turn: bool,
    /// Its desired driver version.
    pub driver_version: DriverVersion<'m>,
    /// Why the policy cannot be applied to it.
    pub fault: Option<&'m Fault>,
    /// Whether it is ready, by its present or pending GpuNode status.
    pub ready: bool,
    /// The phase of its status.
    pub phase: Phase,
    /// The reason of its status.
    pub reason: Reason,
    /// Since when it has had this reason.
    pub since: Option<Time>,
    /// The message of its status; empty if there is no problem.
    pub message: String,
    pub gpus: GpuTotals,
}

impl<'m> Counted<'m> {
    /// Returns how a node with this present or pending status counts.
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
            current: member.want().is_none_or(|want| turn::has_nothing_else(&member.have, &want)),
            in_turn,
            driver_version: DriverVersion::of(member),
            fault: member.desired.fault(),
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

    /// Returns how a node counts whose GpuNode cannot be parsed: never better than if it could.
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

    /// Returns whether it cannot proceed because of a failure.
    pub fn failed(&self) -> bool {
        !self.ready && self.reason.is_failure()
    }

    /// Returns whether it is neither ready, nor failed, nor excluded.
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

/// Returns how many nodes are in each state, in the order of the states, such as `2 Driver, 1 Toolkit`.
pub fn by_state<S: Ord>(states: impl Iterator<Item = S>, name: impl Fn(&S) -> &'static str) -> String {
    let mut counts: BTreeMap<S, u32> = BTreeMap::new();
    for state in states {
        *counts.entry(state).or_default() += 1;
    }
    counts.iter().map(|(state, count)| format!("{count} {}", name(state))).collect::<Vec<_>>().join(", ")
}
