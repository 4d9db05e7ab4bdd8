//! The container toolkit: how containers get at the driver.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::Operand;

/// How containers get at the driver of their node.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Toolkit {
    /// Image, environment, arguments and resources of the installing container.
    #[serde(flatten)]
    pub operand: Operand,
}
