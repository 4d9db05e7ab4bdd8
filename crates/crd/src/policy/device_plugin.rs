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
        "(!has(self.google) || !has(self.flavor) || self.flavor == 'Google') && (!has(self.external) || has(self.flavor) && self.flavor == 'External')",
        "google and external are the settings of the flavor of that name: write that flavor, or remove them"
    ),
    validation = (
        "!has(self.flavor) || self.flavor != 'External' || (!has(self.image) && !has(self.env) && !has(self.args) && !has(self.resources))",
        "flavor External is a third-party device plugin, which the operator does not configure: remove image, env, args and resources, or write flavor: Nvidia"
    ),
    validation = (
        "!has(self.flavor) || self.flavor == 'Nvidia' || !has(self.mig) || self.flavor == 'External' && !has(self.mig.layout) && (!has(self.mig.mode) || self.mig.mode == 'Unmanaged')",
        "GPUs are partitioned only for NVIDIA's device plugin: write flavor: Nvidia, or remove mig. Flavor External supports mig.strategy alone"
    ),
    validation = (
        "!has(self.sharing) || !has(self.sharing.mps) || !has(self.mig) || !has(self.mig.layout) && (!has(self.mig.mode) || self.mig.mode == 'Unmanaged') && (!has(self.mig.strategy) || self.mig.strategy != 'Mixed')",
        "GPUs that are shared by MPS cannot be repartitioned, because the MPS control daemon keeps them in use, and MPS does not support mig.strategy Mixed: write sharing.timeSlicing instead of mps, or remove mig"
    ),
    validation = (
        "!has(self.flavor) || self.flavor != 'Google' || !has(self.sharing) || !has(self.sharing.mps) && (!has(self.sharing.timeSlicing) || !has(self.sharing.timeSlicing.renameByDefault) && !has(self.sharing.timeSlicing.failRequestsGreaterThanOne))",
        "Google's device plugin supports only timeSlicing.replicas, and MPS only if GKE runs the control daemon: remove the other fields of sharing, or write flavor: Nvidia"
    ),
    validation = (
        "!has(self.flavor) || self.flavor != 'Google' || !has(self.image) || !has(self.image.repository) || has(self.image.tag) || has(self.image.digest)",
        "the default digest of Google's device plugin is valid only in Google's repository: add image.tag or image.digest to image.repository"
    )
)]
pub struct DevicePlugin {
    /// The device plugin to use. Defaults to `Google` on nodes whose driver is in the directory of Google's installers,
    /// and to `Nvidia` on all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flavor: Option<PluginFlavor>,
    /// Sharing of GPUs between pods. Defaults to one pod per GPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sharing: Sharing,
    /// Partitioning of GPUs by MIG, and the resource names of MIG devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Mig>,
    /// Settings of flavor `Google`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub google: GooglePlugin,
    /// Settings of flavor `External`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub external: ExternalPlugin,
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
    Google,
    /// A third-party device plugin. The operator installs none and monitors what the node advertises.
    External,
}

/// Settings of Google's device plugin.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GooglePlugin {
    /// The port of the pod, such as 2112, on which metrics about containers that use GPUs are served. Defaults to no metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 65535))]
    pub metrics_port: Option<u16>,
}

/// Settings for a third-party device plugin.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ExternalPlugin {
    /// The resource name under which it advertises whole GPUs. Defaults to `nvidia.com/gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ResourceName>")]
    pub resource_name: Option<String>,
}

/// Sharing of GPUs between pods, by one mechanism at most.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "!has(self.timeSlicing) || !has(self.mps)",
    "timeSlicing and mps exclude each other: remove one of them"
))]
pub struct Sharing {
    /// Time-slicing: pods take turns on a GPU, without isolation from each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_slicing: Option<TimeSlicing>,
    /// CUDA's Multi-Process Service (MPS): pods run at the same time, each with a fixed fraction of the GPU's memory
    /// and compute capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps: Option<Mps>,
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
