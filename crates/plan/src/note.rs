//! Notes: what is to be said of a node beside how far it is.

use gpu_operator_crd::reason::Reason;

/// Longest message; the rest would be kept from the API server by the schema.
const MAX_MESSAGE: usize = 1024;

/// Something worth a look on a node, in a word and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The class.
    pub reason: Reason,
    /// In a sentence.
    pub message: String,
    /// Pods that are waited for.
    pub waits_on: Vec<String>,
}

impl Note {
    /// A note that waits on nothing.
    #[must_use]
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), waits_on: Vec::new() }
    }
}

/// Cuts a message to what the schema takes.
#[must_use]
pub fn clip(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).collect()
}
