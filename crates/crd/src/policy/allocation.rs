//! How pods get the GPUs of a node: from its device plugin, or by resource claims from NVIDIA's DRA driver.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::operand::Operand;
use crate::open::is_default;

/// How pods get the GPUs of a node.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "!has(self.dra) || has(self.mode) && self.mode == 'DRA'",
    "dra is the configuration of NVIDIA's DRA driver: write mode: DRA, or remove dra"
))]
pub struct Allocation {
    /// The component that allocates the GPUs. Defaults to `DevicePlugin`. A node changes from one to the other only while no pod uses its
    /// GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<AllocationMode>,
    /// Image, environment, arguments and resources of the DRA driver's container.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dra: Operand,
}

/// The component that allocates GPUs to pods.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllocationMode {
    /// The device plugin, which advertises `nvidia.com/gpu` to kubelet.
    #[default]
    DevicePlugin,
    /// NVIDIA's DRA driver, which publishes the GPUs in `ResourceSlices`. Pods get them by resource claims or, from Kubernetes 1.36 on, by
    /// `nvidia.com/gpu` as well. The node needs Kubernetes 1.34, driver 565 and a container runtime with CDI.
    #[serde(rename = "DRA")]
    Dra,
}

impl Allocation {
    /// Returns whether pods get GPUs by resource claims.
    pub fn is_by_claims(&self) -> bool {
        self.mode == Some(AllocationMode::Dra)
    }
}
