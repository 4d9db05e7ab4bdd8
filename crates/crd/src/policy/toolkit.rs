//! The container toolkit, which gives containers access to the driver.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::operand::Operand;
use crate::{
    open::is_default,
    schema::{HostFolder, HostPath, RuntimeClassName},
};

/// The container toolkit, which gives containers access to their node's driver.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = (
        "!has(self.runtime) || self.runtime != 'Docker' || !has(self.injection) || !(self.injection in ['CDI', 'NRI'])",
        "Docker supports neither CDI devices from kubelet nor NRI plugins: write injection: Runtime, or remove injection"
    ),
    validation = (
        "!has(self.setAsDefault) || !self.setAsDefault || !has(self.injection) || !(self.injection in ['CDI', 'NRI', 'None'])",
        "setAsDefault has no effect with injection: CDI, NRI or None, which configure no runtime; remove setAsDefault, or write injection: Runtime"
    ),
    validation = (
        "!has(self.runtime) || self.runtime != 'Docker' || !has(self.hostPaths) || !has(self.hostPaths.dropIn)",
        "Docker does not support drop-in files: remove hostPaths.dropIn, and write the path of daemon.json in hostPaths.config"
    )
)]
pub struct Toolkit {
    /// The container runtime of the nodes. Defaults to `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<ContainerRuntime>,
    /// The mechanism that gives containers their GPUs. Defaults to `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub injection: Option<Injection>,
    /// Name of NVIDIA's runtime in the container runtime's configuration, and of the `RuntimeClass` that selects it.
    /// Applies to injection `Runtime`, and to `CDI` with containerd 1.7. Defaults to `nvidia`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RuntimeClassName>")]
    pub runtime_class: Option<String>,
    /// Whether NVIDIA's runtime also runs pods without a `RuntimeClass`. Applies to injection `Runtime`. If false, pods
    /// that request GPUs must set `runtimeClassName`. If true, a container whose image sets `NVIDIA_VISIBLE_DEVICES=all`
    /// can access every GPU of its node without requesting one. Defaults to true, and to false on k3s and RKE2, which
    /// set the default themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_as_default: Option<bool>,
    /// The directory on the host in which the toolkit is installed, as subdirectory `toolkit`. Defaults to
    /// `/home/kubernetes/bin/nvidia` on nodes with a driver in that directory, and otherwise to the directory in
    /// `status.report.toolkitFolder` of the `GpuNode`, which is `/usr/local/nvidia` where that is writable and executable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostFolder>")]
    pub install_dir: Option<String>,
    /// The Kubernetes distribution, which determines the paths of the container runtime's files. Defaults to `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Distribution>,
    /// Paths of the container runtime's files. They override those of the distribution.
    #[serde(default, skip_serializing_if = "is_default")]
    pub host_paths: RuntimePaths,
    /// Image, environment, arguments and resources of the installer's container.
    #[serde(flatten)]
    pub operand: Operand,
}

/// A container runtime.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerRuntime {
    /// The runtime in the Node's `status.nodeInfo.containerRuntimeVersion`.
    #[default]
    Auto,
    /// containerd.
    Containerd,
    /// Docker, with cri-dockerd.
    Docker,
    /// CRI-O.
    #[serde(rename = "CRIO")]
    CriO,
}

/// The mechanism that gives containers their GPUs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Injection {
    /// `CDI` if the runtime supports CDI devices (containerd 1.7 and later, CRI-O), otherwise `Runtime`. `Runtime` if
    /// `setAsDefault` is true.
    #[default]
    Auto,
    /// CDI devices, which kubelet passes to the runtime. containerd 2 and CRI-O are neither configured nor restarted. In
    /// containerd 1.7, CDI is enabled, which requires one restart.
    #[serde(rename = "CDI")]
    Cdi,
    /// CDI devices, as with `CDI`. In addition, NVIDIA's NRI plugin adds CDI devices to those pods of the operator's
    /// namespace that request them in an annotation. Requires containerd 2.1, or CRI-O 1.34 or later. The runtime is
    /// neither configured nor restarted.
    #[serde(rename = "NRI")]
    Nri,
    /// The host's own mechanism: the toolkit is not installed. For machine images whose container runtime already uses
    /// NVIDIA's runtime. The device plugin sets the environment variables that this runtime reads.
    None,
    /// NVIDIA's runtime, which is added to the container runtime's configuration. The container runtime is restarted
    /// once, and the entry is removed again with the toolkit.
    Runtime,
}

/// A Kubernetes distribution.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// Detected from the node's labels and the version of its kubelet.
    #[default]
    Auto,
    /// Any distribution that keeps the runtime's files at their standard paths.
    Kubeadm,
    /// k3s.
    K3s,
    /// RKE2.
    #[serde(rename = "RKE2")]
    Rke2,
    /// `MicroK8s`.
    MicroK8s,
    /// k0s.
    K0s,
}

/// Paths of a container runtime's files.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RuntimePaths {
    /// The main configuration file, such as `/etc/containerd/config.toml` or `/etc/docker/daemon.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostPath>")]
    pub config: Option<String>,
    /// The drop-in file for NVIDIA's runtime, such as `/etc/containerd/conf.d/99-nvidia.toml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostPath>")]
    pub drop_in: Option<String>,
    /// The socket of the runtime, such as `/run/containerd/containerd.sock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostPath>")]
    pub socket: Option<String>,
    /// The socket for NRI plugins, such as `/var/run/nri/nri.sock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostPath>")]
    pub nri_socket: Option<String>,
}
