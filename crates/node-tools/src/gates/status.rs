//! The status of a gate.

/// The result of checking a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateStatus {
    /// The gate is open, with the reason.
    Open(String),
    /// The gate is closed, with what it waits for.
    Waiting(String),
}
