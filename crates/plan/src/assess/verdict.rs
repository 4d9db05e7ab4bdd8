//! The verdict on a node: its phase, and why.

use gpu_operator_crd::{Phase, reason::Reason};

/// A node's phase with its reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub phase: Phase,
    /// The machine-readable reason.
    pub reason: Reason,
    /// The message for humans.
    pub message: String,
    /// The pods that the node is waiting for, as `namespace/name`.
    pub waits_on: Vec<String>,
}

impl Verdict {
    /// Returns a verdict on a node that is not waiting for particular pods.
    pub fn new(phase: Phase, reason: Reason, message: impl Into<String>) -> Self {
        Self { phase, reason, message: message.into(), waits_on: Vec::new() }
    }
}
