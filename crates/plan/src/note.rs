//! Notes: what a node's status reports in addition to its verdict.

use gpu_operator_common::text::{hide_in_urls, shorten};
use gpu_operator_crd::reason::Reason;
use serde::Serialize;

/// The maximum length of a message, in characters; the schema rejects longer ones.
const MAX_MESSAGE: usize = 1024;
/// The number of names in a message; the others are counted.
const MAX_NAMED: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub reason: Reason,
    pub message: String,
    /// The pods that the node is waiting for, as `namespace/name`.
    pub waits_on: Vec<String>,
}

impl Note {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), waits_on: Vec::new() }
    }
}

/// Returns the first three of some names, and the number of the others.
pub fn listed(names: &[String]) -> String {
    let first = names.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Returns a message for a status: truncated, and without credentials, which the ends of logs may contain in URLs.
pub fn shown(message: &str) -> String {
    let mut message = hide_in_urls(message);
    shorten(&mut message, MAX_MESSAGE);
    message
}

/// Why a node cannot have what its policy requires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub reason: Reason,
    /// What is wrong, and what to write or do instead.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_shown_without_credentials_and_clipped() {
        let long = "ä".repeat(MAX_MESSAGE);
        for (message, expected) in [
            ("proxy http://me:canary@proxy:3128 denied", "proxy http://***@proxy:3128 denied"),
            ("https://mirror/a.run?token=canary: 403", "https://mirror/a.run?*** 403"),
            (&format!("{long}x"), &long),
        ] {
            assert_eq!(shown(message), expected);
        }
    }
}
