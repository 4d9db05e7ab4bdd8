//! The driver of a node.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The driver's state on the host.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DriverFacts {
    /// Version of the loaded kernel module (`/sys/module/nvidia/version`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub loaded: Option<String>,
    /// Identifies one load of the module within a boot (the inode of `/sys/module/nvidia`).
    #[serde(rename = "loadID", default, skip_serializing_if = "Option::is_none")]
    pub load_id: Option<u64>,
    /// Whether the loaded module is used by anything but the driver's own modules.
    #[serde(default)]
    pub in_use: bool,
    /// The programs that have a device file of the driver open, without the probe's own: one for each pod, and those outside of pods
    /// first. Absent unless `GpuNode.spec.reportHolders` requests them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub holders: Option<Vec<Holder>>,
    /// Whether NVIDIA's driver container has run since the node booted (`/run/nvidia/nvidia-driver.pid` or `.state`).
    /// If so, the loaded module may be left over from a container whose libraries are gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub container_ran: bool,
    /// The text of `/run/nvidia/nvidia-driver.state`: the digest of the configuration with which NVIDIA's driver container has loaded the
    /// module. A container with the same digest keeps the module, although programs use it. Absent if the image does not write the
    /// file, or if a fabric manager has run in the container, because CUDA programs end with it (by NVIDIA's documentation; not
    /// verified).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub config_digest: Option<String>,
    /// User-space drivers that were found: on the host, in the driver container's root and in GKE's directory.
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[serde(default)]
    pub installed: Vec<InstalledDriver>,
    /// What the driver's container is waiting for before it starts, as reported by its guard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub waits: Option<String>,
    /// Why no driver is loaded, according to the kernel's log: its messages about the last attempt in this boot. Absent while a
    /// driver is loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 300)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub load_errors: Vec<String>,
    /// The highest CUDA version that the driver supports, such as `13.1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub cuda_version: Option<String>,
    /// The error with which `cuInit` fails on the node, so that no CUDA program can start. The probe calls it in a process of its own once
    /// NVML works, and again when the driver, a MIG layout or the fabric manager changes. Absent while it has not failed twice in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_error: Option<CudaError>,
}

/// An error of CUDA's driver API.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CudaError {
    /// Its number, such as `802`.
    #[serde(default)]
    pub code: u32,
    /// Its name, such as `CUDA_ERROR_SYSTEM_NOT_READY`. Empty if the library does not know the error.
    #[schemars(length(max = 64))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// A program that has a device file of the driver (`/dev/nvidia*`) open.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// The UID of its pod, from the process's control group. Absent for a process outside of pods.
    #[serde(rename = "podUID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub pod_uid: Option<String>,
    /// Its process ID on the host. Absent for a process of a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The name of the process, as in `/proc/PID/comm`.
    #[schemars(length(max = 64))]
    #[serde(default)]
    pub process: String,
}

/// A user-space driver, identified by its `libnvidia-ml.so.<version>`.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InstalledDriver {
    /// The directory on the host that contains the driver: `/`, `/run/nvidia/driver`, `/home/kubernetes/bin/nvidia` or
    /// the value of `GpuNode.spec.driverRoot`.
    #[schemars(length(max = 256))]
    #[serde(default)]
    pub root: String,
    /// Version of the driver, from the library's file name.
    #[schemars(length(max = 64))]
    #[serde(default)]
    pub version: String,
    /// Device nodes that programs need and that are missing, such as `nvidia-uvm`: in a driver container's root, or in
    /// the host's `/dev` while this driver is loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 64)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub missing_devices: Vec<String>,
    /// Those of the host's device nodes that NVIDIA's device plugin has not listed in its CDI specification, such as
    /// `nvidia-uvm`: it writes the specification when it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 64)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub unlisted_devices: Vec<String>,
}
