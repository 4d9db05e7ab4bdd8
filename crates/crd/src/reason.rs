//! Reasons and condition types of status. A reason is the `reason` of a condition, a GpuNode, an Event and a
//! metric's label, so that the same word can be looked up everywhere. All of them are in the tables of this module, with what they
//! mean and what to do.

#[macro_use]
mod node;
#[macro_use]
mod failure;
#[macro_use]
mod policy;
mod pod;

use serde::Serialize;
use strum::{EnumString, IntoEnumIterator, IntoStaticStr};

pub use self::pod::Mistake;
pub use crate::explanation::{Class, Explanation};

node_reasons! {
    /// The reason for the state of a node or policy.
    #[derive(Serialize, EnumString)]
    pub enum Reason;
}

/// Returns the explanations of all reasons.
pub fn explanations() -> impl Iterator<Item = Explanation> {
    Reason::iter().map(Reason::explanation).chain(Mistake::iter().map(Mistake::explanation))
}

impl Reason {
    /// Returns whether the node cannot proceed until a user, or time, resolves a problem. Failures are Warning Events,
    /// halt the rollout of their pool and make the policy Stalled.
    pub fn is_failure(self) -> bool {
        matches!(self.class(), Class::Failure | Class::PolicyFailure)
    }

    /// Returns whether the Node itself is unavailable.
    pub fn is_away(self) -> bool {
        self.class() == Class::Unavailable
    }

    /// Returns whether the node's GPUs are offered by other means, so that the node is excluded from readiness.
    pub fn counts_apart(self) -> bool {
        self == Self::ForeignDraDriver
    }

    /// Returns whether the progress deadline of the node is suspended: it is unavailable, excluded from readiness, or
    /// waiting for other nodes, for GPU pods, which have a timeout of their own, or for a short fixed time.
    pub fn stops_the_clock(self) -> bool {
        let waits = self.class() == Class::Waiting || self == Self::ForeignDevicePlugin;
        self.is_away() || self.counts_apart() || waits
    }

    /// Returns whether the reason is a warning about a node that works. Two failures are, if enough GPUs are healthy.
    pub fn is_note(self) -> bool {
        self.class() == Class::Warning || matches!(self, Self::GpuMissing | Self::GpuUnhealthy)
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The conditions of a policy, as defined by kstatus where it defines them.
#[derive(IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// Enough nodes can run GPU pods.
    Ready,
    /// The operator is making changes that users should wait for. Never together with `Stalled`.
    Reconciling,
    /// The operator cannot proceed until a user, or time, resolves a problem.
    Stalled,
    /// GPUs have problems, or their health is unknown.
    Degraded,
    /// All settings of the policy are valid for its nodes.
    Accepted,
}

/// The conditions of a GpuNode, as defined by kstatus where it defines them.
#[derive(IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeConditionType {
    /// GPU pods can be scheduled on the node.
    Ready,
    /// The node cannot proceed until a user, or time, resolves a problem.
    Stalled,
    /// The driver works.
    DriverReady,
    /// The container runtime can give GPUs to containers.
    ToolkitReady,
    /// All expected GPUs are allocatable.
    DevicePluginReady,
    /// No GPU has a problem that makes it unusable.
    Healthy,
}

impl NodeConditionType {
    /// Returns the condition's `type`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl ConditionType {
    /// Returns the condition's `type`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
