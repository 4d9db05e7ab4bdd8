//! How far a node is, and why.

use gpu_operator_crd::{Phase, reason::Reason};

/// What is to be said of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How far it is.
    pub phase: Phase,
    /// Why, in one word.
    pub reason: Reason,
    /// Why, in a sentence.
    pub message: String,
    /// What in particular it waits on.
    pub waits_on: Vec<String>,
}

impl Verdict {
    /// A verdict that waits on nothing in particular.
    #[must_use]
    pub fn new(phase: Phase, reason: Reason, message: impl Into<String>) -> Self {
        Self { phase, reason, message: message.into(), waits_on: Vec::new() }
    }
}
