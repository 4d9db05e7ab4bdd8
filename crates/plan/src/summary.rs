//! What the fleet needs to know of one node: for the counts of its policy and, of a settled node, for everything else.

use std::{collections::BTreeMap, sync::Arc};

use gpu_operator_crd::{
    NodeName, Phase, PolicyName, PoolName, Reason,
    policy_status::{GpuTotals, NodeCounts},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use crate::{desired::variant::Variant, note::Fault, world::NodeFacts};

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
    pub fn of(node: &NodeFacts, reason: Reason) -> Option<Self> {
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverVersion {
    /// At present, as after a reboot.
    Unknown,
    /// This operator does not determine it.
    Other,
    Is(String),
}

/// A node as its policy counts it: only a part of its status, because all nodes are held in memory at once.
#[derive(Clone, Debug)]
pub struct NodeSummary {
    pub node: NodeName,
    pub pool: PoolName,
    pub model: Option<String>,
    /// Why it does not count towards readiness.
    pub excluded: Option<Exclusion>,
    /// Whether it has the desired revision.
    pub current: bool,
    /// Whether an update of it is under way.
    pub in_turn: bool,
    pub driver_version: DriverVersion,
    pub fault: Option<Fault>,
    /// By its present or pending status.
    pub ready: bool,
    pub phase: Phase,
    pub reason: Reason,
    pub since: Option<Time>,
    /// Empty if there is no problem.
    pub message: String,
    pub gpus: GpuTotals,
}

impl NodeSummary {
    pub fn failed(&self) -> bool {
        !self.ready && self.reason.is_failure()
    }

    /// Neither ready, nor failed, nor excluded.
    pub fn in_progress(&self) -> bool {
        self.excluded.is_none() && !self.ready && !self.failed()
    }
}

pub fn count<'s>(nodes: impl Iterator<Item = &'s NodeSummary>) -> (NodeCounts, GpuTotals) {
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

/// A settled node: nothing is written or asked for it until one of its facts changes or a time comes.
#[derive(Clone, Debug)]
pub enum Settled {
    Member(Arc<SettledMember>),
    /// No policy governs it.
    Unmanaged(UnmanagedSummary),
}

impl Settled {
    pub fn node(&self) -> &NodeName {
        match self {
            Self::Member(member) => &member.summary.node,
            Self::Unmanaged(unmanaged) => &unmanaged.node,
        }
    }

    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Member(member) => member.until,
            Self::Unmanaged(unmanaged) => unmanaged.until,
        }
    }

    /// Returns the policy that would govern the node if its label did not exclude it.
    pub fn selected_by(&self) -> Option<&PolicyName> {
        match self {
            Self::Member(_) => None,
            Self::Unmanaged(unmanaged) => unmanaged.selected_by.as_ref(),
        }
    }

    pub fn member(&self) -> Option<&Arc<SettledMember>> {
        match self {
            Self::Member(member) => Some(member),
            Self::Unmanaged(_) => None,
        }
    }
}

/// A node that has nothing of this operator.
#[derive(Clone, Debug)]
pub struct UnmanagedSummary {
    pub node: NodeName,
    /// The policy that would govern the node if its label did not exclude it.
    pub selected_by: Option<PolicyName>,
    pub until: Option<Timestamp>,
}

/// A governed node that has what it should have. While its whole pool rests, the fleet needs nothing else of it.
#[derive(Clone, Debug)]
pub struct SettledMember {
    pub policy: PolicyName,
    /// Other policies that select it.
    pub others: Vec<PolicyName>,
    /// The most GPUs that its bus has ever shown, if a pool's number of GPUs depends on it.
    pub most_gpus: Option<u32>,
    /// Whether pods get no GPU of it.
    pub is_unavailable: bool,
    /// What it has, if the operator installs or uses anything there.
    pub variant: Option<Arc<Variant>>,
    pub summary: Arc<NodeSummary>,
    /// From then on the node has to be planned again, even if nothing changes.
    pub until: Option<Timestamp>,
}
