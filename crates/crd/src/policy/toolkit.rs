//! The container toolkit: how containers get at the driver.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Operand, is_default};
use crate::schema::{HostFolder, HostPath, RuntimeClassName};

/// How containers get at the driver of their node.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = (
        "!has(self.runtime) || self.runtime != 'Docker' || !has(self.injection) || !(self.injection in ['Cdi', 'Nri'])",
        "Docker takes neither CDI devices from kubelet nor NRI plugins: write injection: Runtime beside runtime: Docker, or remove injection"
    ),
    validation = (
        "!has(self.setAsDefault) || !self.setAsDefault || !has(self.injection) || !(self.injection in ['Cdi', 'Nri', 'None'])",
        "with injection Cdi, Nri or None no runtime is configured, so that none can be the default: remove setAsDefault, or write injection: Runtime"
    ),
    validation = (
        "!has(self.runtime) || self.runtime != 'Docker' || !has(self.hostPaths) || !has(self.hostPaths.dropIn)",
        "Docker reads no drop-in files: remove hostPaths.dropIn and write the path of daemon.json as hostPaths.config"
    )
)]
pub struct Toolkit {
    /// The container runtime of the nodes. Absent: `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<ContainerRuntime>,
    /// How containers are given their GPUs. Absent: `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub injection: Option<Injection>,
    /// Name of NVIDIA's runtime in the container runtime's configuration and of the `RuntimeClass` that stands for it,
    /// where injection is `Runtime`. Absent: `nvidia`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RuntimeClassName>")]
    pub runtime_class: Option<String>,
    /// Whether pods that name no `RuntimeClass` are run by NVIDIA's runtime too, where injection is `Runtime`. Absent:
    /// false. Beware: an image that says `NVIDIA_VISIBLE_DEVICES=all` then sees every GPU of its node without asking for
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_as_default: Option<bool>,
    /// The folder of the host under which the toolkit is installed, as `toolkit`: for hosts on which the usual one cannot be
    /// written to. Absent: `/usr/local/nvidia`, and `/home/kubernetes/bin/nvidia` on nodes with a driver in that folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostFolder>")]
    pub install_dir: Option<String>,
    /// The distribution of Kubernetes, which says where the runtime keeps its files. Absent: `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Distribution>,
    /// Where the runtime keeps its files, over what the distribution says.
    #[serde(default, skip_serializing_if = "is_default")]
    pub host_paths: RuntimePaths,
    /// Image, environment, arguments and resources of the installing container.
    #[serde(flatten)]
    pub operand: Operand,
}

/// A container runtime.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerRuntime {
    /// What the Node says in `status.nodeInfo.containerRuntimeVersion`.
    #[default]
    Auto,
    /// containerd.
    Containerd,
    /// Docker, behind cri-dockerd.
    Docker,
    /// CRI-O.
    CriO,
}

/// How containers are given their GPUs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Injection {
    /// `Cdi` where the runtime takes CDI devices by itself (containerd 2.0 and later, CRI-O), `Runtime` elsewhere.
    #[default]
    Auto,
    /// By CDI devices that the runtime takes from kubelet. No runtime is configured or restarted.
    Cdi,
    /// By CDI devices, as `Cdi`. NVIDIA's NRI plugin runs beside, which adds CDI devices to pods of the operator's namespace
    /// that name them in an annotation, and to no others. Needs containerd 2.1, CRI-O 1.34 or later. No runtime is configured
    /// or restarted.
    Nri,
    /// By what the host brings: nothing of the toolkit is installed. For machine images whose container runtime runs pods by
    /// NVIDIA's runtime already. The device plugin then answers with the environment that this runtime reads.
    None,
    /// By NVIDIA's runtime, which is entered into the container runtime's configuration. The container runtime is
    /// restarted once, and what was entered is taken out again when the toolkit goes.
    Runtime,
}

/// A distribution of Kubernetes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// What the node's labels and the version of its kubelet tell.
    #[default]
    Auto,
    /// Any whose runtime keeps its files where its own packages put them.
    Kubeadm,
    /// k3s.
    K3s,
    /// RKE2.
    Rke2,
    /// `MicroK8s`.
    MicroK8s,
    /// k0s.
    K0s,
}

/// Where a container runtime keeps its files.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RuntimePaths {
    /// Its main configuration, such as `/etc/containerd/config.toml` or `/etc/docker/daemon.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostPath>")]
    pub config: Option<String>,
    /// The file beside it that NVIDIA's runtime is entered into, such as `/etc/containerd/conf.d/99-nvidia.toml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostPath>")]
    pub drop_in: Option<String>,
    /// The socket it listens on, such as `/run/containerd/containerd.sock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostPath>")]
    pub socket: Option<String>,
    /// The socket on which it takes NRI plugins, such as `/var/run/nri/nri.sock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostPath>")]
    pub nri_socket: Option<String>,
}
