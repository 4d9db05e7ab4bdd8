//! Flags of NVIDIA's device plugin.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Flags of NVIDIA's device plugin, named as in its configuration file. Flags that are not set have the plugin's own
/// default.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct PluginFlags {
    /// Whether the plugin exits with an error if it cannot start; with `false` it waits. The plugin's default is
    /// `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_on_init_error: Option<bool>,
    /// Whether the plugin also passes device nodes to kubelet. Without them, kubelet's static CPU manager revokes the
    /// GPU access of containers that get their GPUs from NVIDIA's runtime. The plugin's default is `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_device_specs: Option<bool>,
    /// How GPUs are identified to containers. The plugin's default is `UUID`.
    #[serde(default, rename = "deviceIDStrategy", skip_serializing_if = "Option::is_none")]
    pub device_id_strategy: Option<DeviceIdStrategy>,
}

/// How GPUs are identified to containers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceIdStrategy {
    /// By UUID.
    #[serde(rename = "UUID")]
    Uuid,
    /// By index, which may change when the node reboots.
    Index,
}

impl DeviceIdStrategy {
    /// Returns the strategy's name in the plugin's configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Uuid => "uuid",
            Self::Index => "index",
        }
    }
}
