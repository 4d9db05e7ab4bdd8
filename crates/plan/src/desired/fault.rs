//! Why a node cannot have what its policy asks for.

use gpu_operator_crd::reason::Reason;
use serde::Serialize;

/// Why a node cannot be given what its policy asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The class.
    pub reason: Reason,
    /// What to write or do instead.
    pub message: String,
}
