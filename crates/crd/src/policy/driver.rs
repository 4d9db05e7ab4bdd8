//! The driver: where it comes from, and which one.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Operand;

/// How a driver gets onto a node.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = (
        "!has(self.source) || self.source != 'Preinstalled' || (!has(self.version) && !has(self.image) && !has(self.kernelModule))",
        "source Preinstalled takes the driver that is on the host: remove version, image and kernelModule, or write source: Container"
    ),
    validation = (
        "!has(self.image) || !(has(self.image.digest) || has(self.image.tag)) || has(self.version)",
        "a tag or digest does not tell which driver the image holds: write its version as well, such as version: \"580.173.02\""
    )
)]
pub struct Driver {
    /// Where it comes from. Absent: `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<DriverSource>,
    /// The driver's full version, such as `580.173.02`. Absent: the newest recommended one that the node's models
    /// support.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self.matches('^[0-9]{3}[.][0-9]{1,3}([.][0-9]{1,3})?$')",
        "write the driver's full version, such as \"580.173.02\""
    ))]
    pub version: Option<String>,
    /// Which kernel module. Absent: `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_module: Option<KernelModule>,
    /// Image, environment, arguments and resources of the installing container.
    #[serde(flatten)]
    pub operand: Operand,
}

/// Where a driver comes from.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverSource {
    /// `Preinstalled` on nodes with a driver on the host, loaded or not; `Container` on all others.
    #[default]
    Auto,
    /// NVIDIA's driver container, or an image that behaves like it.
    Container,
    /// The host's own driver, which is left as it is.
    Preinstalled,
}

/// Which flavour of NVIDIA's kernel modules.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelModule {
    /// What the model and the driver version call for.
    #[default]
    Auto,
    /// The open modules (Turing and later; the only ones for Blackwell).
    Open,
    /// The proprietary modules (the only ones up to Volta).
    Proprietary,
}
