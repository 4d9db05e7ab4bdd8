//! Why a node cannot have what its policy requires.

use gpu_operator_crd::reason::Reason;
use serde::Serialize;

/// Why a node cannot have what its policy requires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub reason: Reason,
    /// What is wrong, and what to write or do instead.
    pub message: String,
}
