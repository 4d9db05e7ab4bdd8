//! Phases of a node's status.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// The progress of a node. Phases follow each other in this order; a node that cannot proceed remains in its phase.
#[derive(
    Serialize, Deserialize, JsonSchema, IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default,
)]
pub enum Phase {
    /// No policy governs the node.
    #[default]
    Unmanaged,
    /// The node is known to have GPUs; its probe has not reported yet.
    Discovery,
    /// The driver has not been verified yet.
    Driver,
    /// The driver works; the container toolkit is not installed yet.
    Toolkit,
    /// Driver and toolkit work; the node's allocatable GPUs have not reached the expected number.
    DevicePlugin,
    /// All GPUs are allocatable; the validation that the policy requests has not passed yet.
    Validation,
    /// The Node is Ready and its allocatable GPUs have reached the expected number.
    Ready,
}

impl Phase {
    /// Returns the phase's name in status.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
