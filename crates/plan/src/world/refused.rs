//! Writes that the API server rejects.

use gpu_operator_crd::{NodeName, PolicyName};

/// A write of this operator that the API server rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedWrite {
    /// The part of the fleet that it concerns.
    pub concerns: Concern,
    /// The error, with the action and the object.
    pub error: String,
}

/// The part of the fleet that a write concerns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Concern {
    /// A node.
    Node(NodeName),
    /// A policy.
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
