//! The stages of a node's GPU stack, and the phases of a node's status.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::keys;

/// The components that are installed on a node, in order.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Kernel modules and user-space driver.
    Driver,
    /// Container toolkit.
    Toolkit,
    /// Control daemon of CUDA's MPS, if GPUs are shared by MPS.
    Mps,
    /// Kubernetes device plugin.
    DevicePlugin,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Self; 4] = [Self::Driver, Self::Toolkit, Self::Mps, Self::DevicePlugin];

    /// Returns the value of the label [`keys::STAGE`], which is also the prefix of the names of the stage's DaemonSets.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Toolkit => "toolkit",
            Self::Mps => "mps",
            Self::DevicePlugin => "device-plugin",
        }
    }

    /// Returns the stage's component, for messages.
    pub fn title(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Toolkit => "container toolkit",
            Self::Mps => "MPS daemon",
            Self::DevicePlugin => "device plugin",
        }
    }

    /// Returns the stage with a name that [`Self::as_str`] returns.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.as_str() == word)
    }

    /// Returns the phase in which a node waits for the stage.
    pub fn phase(self) -> Phase {
        match self {
            Self::Driver => Phase::Driver,
            Self::Toolkit => Phase::Toolkit,
            // Only the device plugin waits for it.
            Self::Mps | Self::DevicePlugin => Phase::DevicePlugin,
        }
    }

    /// Returns the node label that assigns the stage's pods to the node.
    pub fn key(self) -> &'static str {
        match self {
            Self::Driver => keys::DRIVER,
            Self::Toolkit => keys::TOOLKIT,
            Self::Mps => keys::MPS,
            Self::DevicePlugin => keys::DEVICE_PLUGIN,
        }
    }
}

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
