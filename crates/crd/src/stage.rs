//! The stages of a node's GPU stack.

use serde::{Deserialize, Serialize};

use crate::{keys, phase::Phase};

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
