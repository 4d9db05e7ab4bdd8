//! The device plugin: how kubelet comes to offer GPUs, and how many pods share one.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Mig, Operand, PluginFlags};
use crate::schema::ResourceName;

/// How kubelet comes to offer a node's GPUs.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = (
        "!has(self.flavor) || self.flavor != 'External' || (!has(self.image) && !has(self.env) && !has(self.args) && !has(self.resources) && !has(self.flags))",
        "flavor External is somebody else's device plugin, which we only track: remove image, env, args, resources and flags, or write flavor: Nvidia"
    ),
    validation = (
        "!has(self.flavor) || self.flavor != 'External' || !has(self.mig) || !has(self.mig.layout)",
        "flavor External is somebody else's device plugin, and nothing divides GPUs beneath it: remove mig.layout, or write flavor: Nvidia"
    ),
    validation = (
        "!has(self.resourceName) || has(self.flavor) && self.flavor == 'External'",
        "NVIDIA's and Google's device plugins offer GPUs as nvidia.com/gpu and take no other name: remove resourceName, or write flavor: External beside it"
    ),
    validation = (
        "!has(self.sharing) || !has(self.sharing.mps) || !has(self.mig) || !has(self.mig.layout)",
        "MPS's control daemon would hold the GPUs that are to be divided: write sharing.timeSlicing instead of mps, or remove mig.layout"
    ),
    validation = (
        "!has(self.flavor) || self.flavor == 'Gke' || (!has(self.containerMetrics) && !has(self.healthMonitoring))",
        "containerMetrics and healthMonitoring are of Google's device plugin alone: remove them, or write flavor: Gke"
    ),
    validation = (
        "!has(self.flavor) || self.flavor != 'Gke' || (!has(self.mig) && !has(self.flags))",
        "mig and flags are of NVIDIA's device plugin alone: remove them, or write flavor: Nvidia"
    ),
    validation = (
        "!has(self.flavor) || self.flavor != 'Gke' || !has(self.sharing) || !has(self.sharing.timeSlicing) || (!has(self.sharing.timeSlicing.renameByDefault) && !has(self.sharing.timeSlicing.failRequestsGreaterThanOne))",
        "Google's device plugin takes replicas alone: remove renameByDefault and failRequestsGreaterThanOne, or write flavor: Nvidia"
    ),
    validation = (
        "!has(self.flavor) || self.flavor != 'Gke' || !has(self.sharing) || !has(self.sharing.mps)",
        "Google's device plugin shares by MPS only where GKE runs the control daemon: write sharing.timeSlicing instead of mps, or flavor: Nvidia"
    ),
    validation = (
        "!has(self.flavor) || self.flavor != 'Gke' || !has(self.image) || !has(self.image.repository) || has(self.image.tag) || has(self.image.digest)",
        "the default digest of Google's device plugin is of Google's own repository: write image.tag or image.digest beside image.repository"
    ),
    validation = (
        "!has(self.sharing) || !has(self.sharing.mps) || !has(self.mig) || !has(self.mig.strategy) || self.mig.strategy != 'Mixed'",
        "MPS cannot share what MIG strategy Mixed offers: write sharing.timeSlicing instead of mps, or another mig.strategy"
    )
)]
pub struct DevicePlugin {
    /// Whose device plugin. Absent: `Gke` on nodes with a driver where Google's installers put it, else `Nvidia`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flavor: Option<PluginFlavor>,
    /// The name under which somebody else's device plugin offers whole GPUs. Absent: `nvidia.com/gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ResourceName>")]
    pub resource_name: Option<String>,
    /// How many pods share a GPU. Absent: one pod to a GPU; in a pool, what `defaults` say, and `sharing: {}` for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// How GPUs are divided by MIG, and how their parts are offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Mig>,
    /// Flags of NVIDIA's plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<PluginFlags>,
    /// Has Google's plugin serve metrics of the containers that use GPUs. Absent: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_metrics: Option<ContainerMetrics>,
    /// Whether Google's plugin withdraws GPUs on critical XIDs, and tells of them by a condition of the Node. It needs rights
    /// for that, which come with the chart's value `gkeHealthMonitoring`. Absent: `false`; the probe judges health in any
    /// case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_monitoring: Option<bool>,
    /// Image, environment, arguments and resources of the plugin's container.
    #[serde(flatten)]
    pub operand: Operand,
}

/// Whose device plugin it is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PluginFlavor {
    /// NVIDIA's.
    #[default]
    Nvidia,
    /// Google's, which needs no container toolkit and drivers where Google's installers put them.
    Gke,
    /// Somebody else's: none of ours is placed, and what the node offers is tracked.
    External,
}

/// How pods share GPUs: one way, or none.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "!has(self.timeSlicing) || !has(self.mps)",
    "timeSlicing and mps exclude each other: keep one of them"
))]
pub struct Sharing {
    /// Pods take turns on a GPU, without bounds between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_slicing: Option<TimeSlicing>,
    /// Pods compute side by side, each with its part of memory and of the processors, by CUDA's MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps: Option<Mps>,
}

/// Sharing by turns.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct TimeSlicing {
    /// How many pods share one GPU or MIG device.
    #[schemars(range(min = 2, max = 256))]
    pub replicas: u32,
    /// Whether shared GPUs are offered under a name of their own, `nvidia.com/gpu.shared`. Absent: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename_by_default: Option<bool>,
    /// Whether a pod that asks for more than one replica is refused: it would get no more than with one. Absent: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_requests_greater_than_one: Option<bool>,
}

/// Sharing by MPS. A pod can always ask for one replica only.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Mps {
    /// How many pods share one GPU. MPS takes 48 clients to a GPU.
    #[schemars(range(min = 2, max = 48))]
    pub replicas: u32,
    /// Whether shared GPUs are offered under a name of their own, `nvidia.com/gpu.shared`. Absent: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename_by_default: Option<bool>,
}

/// Metrics of the containers that use GPUs.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct ContainerMetrics {
    /// Where they are served, in the pod. Absent: 2112.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 65535))]
    pub port: Option<u16>,
}
