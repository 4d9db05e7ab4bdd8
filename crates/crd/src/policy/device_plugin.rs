//! The device plugin: how kubelet comes to offer GPUs.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::Operand;

/// How kubelet comes to offer a node's GPUs.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DevicePlugin {
    /// Image, environment, arguments and resources of the plugin's container.
    #[serde(flatten)]
    pub operand: Operand,
}
