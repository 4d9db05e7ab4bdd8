//! Writes that the API server rejects, or that other managers revert.

use gpu_operator_crd::{NodeName, PolicyName, reason::Reason};

/// A write of this operator that is made less often because it has no lasting effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldWrite {
    /// The part of the fleet that it concerns.
    pub concerns: Concern,
    /// Why: [`Reason::ApplyFailed`] or [`Reason::ManagerConflict`].
    pub reason: Reason,
    /// The error with the action and the object, or what another manager changes.
    pub message: String,
}

/// The part of the fleet that a write concerns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Concern {
    Node(NodeName),
    Policy(PolicyName),
    /// Possibly every policy.
    Fleet,
}

impl Concern {
    /// Returns whether it is part of a policy, given whether a node is a member of the policy.
    pub fn is_of(&self, policy: &PolicyName, is_member: impl Fn(&NodeName) -> bool) -> bool {
        match self {
            Self::Node(node) => is_member(node),
            Self::Policy(name) => name == policy,
            Self::Fleet => true,
        }
    }
}
