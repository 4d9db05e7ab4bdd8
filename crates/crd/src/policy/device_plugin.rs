//! The device plugin, which advertises GPUs to kubelet, its flags, and the sharing of GPUs between pods.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{mig::Mig, operand::Operand};
use crate::{open::is_default, schema::ResourceName};

/// The device plugin, which advertises a node's GPUs to kubelet.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = (
        "!has(self.flavor) || self.flavor != 'External' || (!has(self.image) && !has(self.env) && !has(self.args) && !has(self.resources) && !has(self.flags))",
        "flavor External is a third-party device plugin, which the operator does not configure: remove image, env, args, resources and flags, or write flavor: Nvidia"
    ),
    validation = (
        "!has(self.flavor) || self.flavor != 'External' || !has(self.mig) || !has(self.mig.layout) && (!has(self.mig.mode) || self.mig.mode == 'Unmanaged')",
        "flavor External is a third-party device plugin, for which the operator does not partition GPUs: remove mig.mode and mig.layout, or write flavor: Nvidia"
    ),
    validation = (
        "!has(self.resourceName) || has(self.flavor) && self.flavor == 'External'",
        "resourceName is valid only with flavor: External; NVIDIA's and Google's device plugins always use nvidia.com/gpu. Remove resourceName, or add flavor: External"
    ),
    validation = (
        "!has(self.sharing) || !has(self.sharing.mps) || !has(self.mig) || !has(self.mig.layout) && (!has(self.mig.mode) || self.mig.mode == 'Unmanaged')",
        "GPUs that are shared by MPS cannot be repartitioned, because the MPS control daemon keeps them in use: write sharing.timeSlicing instead of mps, or remove mig.mode and mig.layout"
    ),
    validation = (
        "!has(self.flavor) || self.flavor == 'Gke' || (!has(self.containerMetrics) && !has(self.healthMonitoring))",
        "containerMetrics and healthMonitoring are valid only with flavor: Gke; remove them, or write flavor: Gke"
    ),
    validation = (
        "!has(self.flavor) || self.flavor != 'Gke' || (!has(self.mig) && !has(self.flags))",
        "mig and flags are not valid with flavor: Gke; remove them, or write flavor: Nvidia"
    ),
    validation = (
        "!has(self.flavor) || self.flavor != 'Gke' || !has(self.sharing) || !has(self.sharing.timeSlicing) || (!has(self.sharing.timeSlicing.renameByDefault) && !has(self.sharing.timeSlicing.failRequestsGreaterThanOne))",
        "Google's device plugin supports only replicas: remove renameByDefault and failRequestsGreaterThanOne, or write flavor: Nvidia"
    ),
    validation = (
        "!has(self.flavor) || self.flavor != 'Gke' || !has(self.sharing) || !has(self.sharing.mps)",
        "Google's device plugin supports MPS only if GKE runs the control daemon: write sharing.timeSlicing instead of mps, or flavor: Nvidia"
    ),
    validation = (
        "!has(self.flavor) || self.flavor != 'Gke' || !has(self.image) || !has(self.image.repository) || has(self.image.tag) || has(self.image.digest)",
        "the default digest of Google's device plugin is valid only in Google's repository: add image.tag or image.digest to image.repository"
    ),
    validation = (
        "!has(self.sharing) || !has(self.sharing.mps) || !has(self.mig) || !has(self.mig.strategy) || self.mig.strategy != 'Mixed'",
        "MPS does not support mig.strategy Mixed: write sharing.timeSlicing instead of mps, or another mig.strategy"
    )
)]
pub struct DevicePlugin {
    /// The device plugin to use. Defaults to `Gke` on nodes whose driver is in the directory of Google's installers,
    /// and to `Nvidia` on all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flavor: Option<PluginFlavor>,
    /// The resource name under which a third-party device plugin (flavor `External`) advertises whole GPUs. Defaults to
    /// `nvidia.com/gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ResourceName>")]
    pub resource_name: Option<String>,
    /// Sharing of GPUs between pods. Defaults to one pod per GPU. In a pool it defaults to the setting in `defaults`,
    /// which it replaces as a whole.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sharing: Sharing,
    /// Partitioning of GPUs by MIG, and the resource names of MIG devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Mig>,
    /// Flags of NVIDIA's device plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<PluginFlags>,
    /// Enables the metrics of Google's device plugin about containers that use GPUs. Disabled by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_metrics: Option<ContainerMetrics>,
    /// Whether Google's device plugin withdraws GPUs on critical XIDs and reports them in a condition of the Node. This
    /// needs permissions that the chart grants with the value `gkeHealthMonitoring`. Defaults to `false`. The probe
    /// monitors health in either case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_monitoring: Option<bool>,
    /// Image, environment, arguments and resources of the plugin's container.
    #[serde(flatten)]
    pub operand: Operand,
}

/// A device plugin.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PluginFlavor {
    /// NVIDIA's device plugin.
    #[default]
    Nvidia,
    /// Google's device plugin. It needs no container toolkit, and requires a driver in the directory of Google's
    /// installers.
    Gke,
    /// A third-party device plugin. The operator installs none and monitors what the node advertises.
    External,
}

/// Sharing of GPUs between pods, by one mechanism at most.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = (
        "!has(self.timeSlicing) || !has(self.mps)",
        "timeSlicing and mps exclude each other: remove one of them"
    ),
    validation = (
        "!has(self.mode) || ((self.mode == 'TimeSlicing') == has(self.timeSlicing) && (self.mode == 'MPS') == has(self.mps))",
        "mode differs from the settings beside it: write mode: TimeSlicing with timeSlicing, mode: MPS with mps, or mode: None without both"
    )
)]
pub struct Sharing {
    /// The mechanism. Defaults to the one whose settings are written, otherwise to `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SharingMode>,
    /// Time-slicing: pods take turns on a GPU, without isolation from each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_slicing: Option<TimeSlicing>,
    /// CUDA's Multi-Process Service (MPS): pods run at the same time, each with a fixed fraction of the GPU's memory
    /// and compute capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps: Option<Mps>,
}

/// The mechanism by which pods share GPUs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SharingMode {
    /// GPUs are not shared.
    #[default]
    None,
    /// Time-slicing.
    TimeSlicing,
    /// CUDA's Multi-Process Service.
    #[serde(rename = "MPS")]
    Mps,
}

/// Sharing by time-slicing.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct TimeSlicing {
    /// The number of pods that share one GPU or MIG device.
    #[schemars(range(min = 2, max = 256))]
    pub replicas: u32,
    /// Whether shared GPUs are advertised as `nvidia.com/gpu.shared`. Defaults to `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename_by_default: Option<bool>,
    /// Whether to reject pods that request more than one replica, which gives them no larger share of the GPU. Defaults
    /// to `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_requests_greater_than_one: Option<bool>,
}

/// Sharing by MPS. Pods cannot request more than one replica.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Mps {
    /// The number of pods that share one GPU. MPS supports up to 48 clients per GPU.
    #[schemars(range(min = 2, max = 48))]
    pub replicas: u32,
    /// Whether shared GPUs are advertised as `nvidia.com/gpu.shared`. Defaults to `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename_by_default: Option<bool>,
}

/// Metrics about containers that use GPUs.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct ContainerMetrics {
    /// The port of the pod on which metrics are served, such as 2112.
    #[schemars(range(min = 1024, max = 65535))]
    pub port: u16,
}

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
