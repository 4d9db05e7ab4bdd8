//! What the probe reports of container runtimes.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The directory on the host in which NVIDIA's device plugin writes its CDI specifications.
pub const CDI_SPECS: &str = "/var/run/cdi";

/// An NVIDIA runtime in the configuration of a container runtime whose program is part of the host.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct HostRuntime {
    /// The main configuration file of the container runtime, such as `/etc/docker/daemon.json`.
    #[schemars(length(max = 256))]
    #[serde(default)]
    pub file: String,
    /// Name of the runtime in that file, which is the handler of a RuntimeClass.
    #[schemars(length(max = 63))]
    #[serde(default)]
    pub handler: String,
    /// Whether the runtime runs pods without a RuntimeClass.
    #[serde(default)]
    pub default: bool,
}

/// The configuration that a container runtime has loaded. containerd and Docker report it themselves; that of CRI-O is from
/// its files.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LoadedRuntime {
    /// Its socket on the host, such as `/run/containerd/containerd.sock`.
    #[schemars(length(max = 256))]
    #[serde(default)]
    pub socket: String,
    /// The configuration file that the command line of containerd or Docker names. Absent if it names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub config: Option<String>,
    /// The runtime of containers without a RuntimeClass, such as `runc`. Absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub default_runtime: Option<String>,
    /// Whether containers can get CDI devices: `enable_cdi` of containerd, and whether CRI-O has any `cdi_spec_dirs`. Absent if
    /// the runtime does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdi: Option<bool>,
    /// The directories from which it reads CDI specifications (`cdi_spec_dirs`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 256)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub cdi_spec_dirs: Vec<String>,
}
