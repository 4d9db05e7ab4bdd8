//! The DaemonSet groups of a node.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{names::Revision, stage::Stage};

/// The DaemonSet group of each stage. The name of a group is the value of the node's label for that stage.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StageRevisions {
    /// The group of the driver. Absent if the operator does not install the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub driver: Option<Revision>,
    /// The group of the container toolkit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub toolkit: Option<Revision>,
    /// The group of the MPS control daemon. Absent if GPUs are not shared by MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub mps: Option<Revision>,
    /// The group of the device plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub device_plugin: Option<Revision>,
}

impl StageRevisions {
    /// Returns the group of a stage.
    pub fn get(&self, stage: Stage) -> Option<&Revision> {
        match stage {
            Stage::Driver => self.driver.as_ref(),
            Stage::Toolkit => self.toolkit.as_ref(),
            Stage::Mps => self.mps.as_ref(),
            Stage::DevicePlugin => self.device_plugin.as_ref(),
        }
    }

    /// Returns the group of a stage, to be changed.
    pub fn get_mut(&mut self, stage: Stage) -> &mut Option<Revision> {
        match stage {
            Stage::Driver => &mut self.driver,
            Stage::Toolkit => &mut self.toolkit,
            Stage::Mps => &mut self.mps,
            Stage::DevicePlugin => &mut self.device_plugin,
        }
    }
}
