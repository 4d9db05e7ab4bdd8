//! Flags of NVIDIA's device plugin.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Flags of NVIDIA's device plugin, by the names that its configuration file has for them. Absent: as the plugin has it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct PluginFlags {
    /// Whether it ends with an error where it cannot begin. `false`: it waits. The plugin's own: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_on_init_error: Option<bool>,
    /// Whether kubelet is told of the device nodes as well, without which its static CPU manager takes GPUs away from
    /// containers that are given them by NVIDIA's runtime. The plugin's own: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_device_specs: Option<bool>,
    /// By what containers are told of their GPUs. The plugin's own: `Uuid`.
    #[serde(default, rename = "deviceIDStrategy", skip_serializing_if = "Option::is_none")]
    pub device_id_strategy: Option<DeviceIdStrategy>,
    /// Whether containers with a GPU are given `/dev/gdrdrv`. The plugin's own: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gdrcopy_enabled: Option<bool>,
    /// Whether containers with a GPU are given the devices of GPU Direct Storage. The plugin's own: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gds_enabled: Option<bool>,
    /// Whether containers with a GPU are given Mellanox' InfiniBand devices. The plugin's own: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mofed_enabled: Option<bool>,
}

/// By what containers are told of their GPUs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceIdStrategy {
    /// By UUIDs.
    Uuid,
    /// By numbers, which may change with a boot.
    Index,
}

impl DeviceIdStrategy {
    /// The plugin's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Uuid => "uuid",
            Self::Index => "index",
        }
    }
}

impl PluginFlags {
    /// These, and what is not said here as `others` say it.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            fail_on_init_error: self.fail_on_init_error.or(others.fail_on_init_error),
            pass_device_specs: self.pass_device_specs.or(others.pass_device_specs),
            device_id_strategy: self.device_id_strategy.or(others.device_id_strategy),
            gdrcopy_enabled: self.gdrcopy_enabled.or(others.gdrcopy_enabled),
            gds_enabled: self.gds_enabled.or(others.gds_enabled),
            mofed_enabled: self.mofed_enabled.or(others.mofed_enabled),
        }
    }
}
