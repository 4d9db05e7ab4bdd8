//! What the probe saw on its node, and what it makes of each GPU's health. The probe alone writes it.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumIter, IntoStaticStr};

use crate::health::GpuHealth;

/// Where NVIDIA's driver container binds its root on the host.
pub const CONTAINER_ROOT: &str = "/run/nvidia/driver";
/// Where a driver's container says what it waits for before it begins, while it does.
pub const WAITS_FILE: &str = "/run/nvidia/driver-waits";
/// The host's own root.
pub const HOST_ROOT: &str = "/";
/// Where Google's installers put the driver on the host, and where GKE and Google's device plugin look for it. Not a root
/// file system: the library expects the host's /dev.
pub const GKE_ROOT: &str = "/home/kubernetes/bin/nvidia";
/// Every root into which the probe looks without being told by `GpuNode.spec.driverRoot`, the preferred first: a driver that
/// was installed by the operator stands in front of one that the host has besides.
pub const DRIVER_ROOTS: [&str; 3] = [CONTAINER_ROOT, HOST_ROOT, GKE_ROOT];

/// One look at a node. Rewritten only when a fact in it changes.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Version of the probe that wrote this.
    #[schemars(length(max = 64))]
    #[serde(default)]
    pub probe_version: String,
    /// The kernel's boot id (`/proc/sys/kernel/random/boot_id`): a new one means the node was rebooted.
    #[schemars(length(max = 64))]
    #[serde(default)]
    pub boot_id: String,
    /// The host's operating system, from its `/etc/os-release`.
    #[serde(default)]
    pub os: OsRelease,
    /// The machine's product name by its firmware (DMI), such as `PowerEdge R750`. Absent: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub machine: Option<String>,
    /// Every NVIDIA GPU on the PCI bus that is not given to a virtual machine, by address.
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// How many NVIDIA GPUs are bound to `vfio-pci`, for virtual machines. They are not in `gpus`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub passed_through: u32,
    /// Whether the GPUs are virtual ones, made by a hypervisor, as their PCI configuration tells. Absent: that could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vgpu: Option<VirtualGpus>,
    /// The driver's state on the host.
    #[serde(default)]
    pub driver: DriverFacts,
    /// Whether NVML answers, and for whom it was let go.
    #[serde(default)]
    pub nvml: NvmlFacts,
    /// NVIDIA's runtimes that the host itself brings, by whoever made its image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub runtimes: Vec<HostRuntime>,
}

/// NVIDIA's runtime in a container runtime's configuration, with a program that the host itself has.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct HostRuntime {
    /// The container runtime's main file, such as `/etc/docker/daemon.json`.
    #[schemars(length(max = 256))]
    #[serde(default)]
    pub file: String,
    /// The name under which it is entered: what a RuntimeClass has for its handler.
    #[schemars(length(max = 63))]
    #[serde(default)]
    pub handler: String,
    /// Whether it runs the pods that name no RuntimeClass.
    #[serde(default)]
    pub default: bool,
}

/// The two words of `/etc/os-release` by which driver images are named.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OsRelease {
    /// `ID`, such as `ubuntu`.
    #[schemars(length(max = 64))]
    #[serde(default)]
    pub id: String,
    /// `VERSION_ID`, such as `22.04`.
    #[schemars(length(max = 64))]
    #[serde(default)]
    pub version_id: String,
}

/// Whether a machine's GPUs are virtual ones, and by which driver of the hypervisor's.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VirtualGpus {
    /// Whether any is.
    #[serde(default)]
    pub present: bool,
    /// Version of the hypervisor's driver, such as `550.90`, where a virtual GPU tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub host_driver_version: Option<String>,
    /// Branch of the hypervisor's driver, such as `r550_00`, where a virtual GPU tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub host_driver_branch: Option<String>,
}

/// One GPU. What needs a driver is absent until NVML has answered.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// PCI address, such as `0000:06:00.0`: the GPU's key, because a lost one has no UUID.
    #[schemars(length(max = 32))]
    #[serde(default)]
    pub pci_address: String,
    /// PCI device id without the vendor, four hex digits, such as `102d`.
    #[schemars(length(max = 8))]
    #[serde(default)]
    pub device_id: String,
    /// PCI class, six hex digits: `030200` is a 3D controller, `030000` a VGA controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub pci_class: Option<String>,
    /// The kernel driver that holds the GPU, where that is another one than NVIDIA's, such as `nouveau`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub held_by: Option<String>,
    /// The product's name, as NVML tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub product: Option<String>,
    /// NVML's UUID, `GPU-…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 96))]
    pub uuid: Option<String>,
    /// Frame buffer, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// CUDA compute capability, such as `9.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub compute_capability: Option<String>,
    /// Whether it can be divided by MIG. Absent: nothing is known of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_capable: Option<bool>,
    /// Its place in an NVLink fabric that spans machines: the fabric's cluster and its clique there, as `<UUID>.<number>`.
    /// Absent: it has joined none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub fabric_clique: Option<String>,
    /// Its MIG devices, by profile. Absent: it is not in MIG mode, or nothing is known of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub mig_devices: Option<Vec<MigDevices>>,
    /// How it is.
    #[serde(default)]
    pub health: GpuHealth,
}

/// MIG devices of one profile.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MigDevices {
    /// The profile, such as `1g.10gb`.
    #[schemars(length(max = 32))]
    #[serde(default)]
    pub profile: String,
    /// How many.
    #[serde(default)]
    pub count: u32,
    /// What each of them has. Absent: NVML does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<MigAttributes>,
}

/// What a MIG device has. The engines are those of its GPU instance, which its compute instances share.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MigAttributes {
    /// Memory, in MiB.
    #[serde(default)]
    pub memory_mib: u64,
    /// Streaming multiprocessors.
    #[serde(default)]
    pub multiprocessors: u32,
    /// Slices of the GPU that its GPU instance takes.
    #[serde(default)]
    pub gpu_slices: u32,
    /// Slices of that GPU instance that its compute instance takes.
    #[serde(default)]
    pub compute_slices: u32,
    /// Copy engines.
    #[serde(default)]
    pub copy_engines: u32,
    /// Video decoders.
    #[serde(default)]
    pub decoders: u32,
    /// Video encoders.
    #[serde(default)]
    pub encoders: u32,
    /// JPEG engines.
    #[serde(default)]
    pub jpeg_engines: u32,
    /// Optical flow accelerators.
    #[serde(default)]
    pub ofa_engines: u32,
}

/// The driver's state on the host.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DriverFacts {
    /// Version of the kernel module that is loaded (`/sys/module/nvidia/version`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub loaded: Option<String>,
    /// Tells one loading of the module from the next within one boot (the inode of `/sys/module/nvidia`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_id: Option<u64>,
    /// Whether the loaded module has users beside the driver's own modules.
    #[serde(default)]
    pub in_use: bool,
    /// Whether NVIDIA's driver container has run since the node booted (`/run/nvidia/nvidia-driver.pid` or `.state`), so that
    /// the loaded module may be one that such a container left behind without its libraries.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub container_ran: bool,
    /// User-space drivers found: on the host, in the driver container's root, in GKE's directory.
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[serde(default)]
    pub installed: Vec<InstalledDriver>,
    /// What the container of the driver waits for before it begins, in the words of the guard that holds it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub waits: Option<String>,
    /// Highest CUDA version that the driver serves, such as `13.1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub cuda_version: Option<String>,
}

/// A user-space driver, known by its `libnvidia-ml.so.<version>`.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InstalledDriver {
    /// Root under which it lies on the host: `/`, `/run/nvidia/driver`, `/home/kubernetes/bin/nvidia` or the folder that
    /// `GpuNode.spec.driverRoot` names.
    #[schemars(length(max = 256))]
    #[serde(default)]
    pub root: String,
    /// Its version, from the library's file name.
    #[schemars(length(max = 64))]
    #[serde(default)]
    pub version: String,
    /// Device nodes that programs need and that a driver container's root lacks, such as `nvidia-uvm`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 64)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub missing_devices: Vec<String>,
}

/// Whether NVML answers.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NvmlFacts {
    /// The state of the probe's NVML child.
    #[serde(default)]
    pub state: NvmlState,
    /// How many GPUs NVML counts, those that it cannot open among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// What NVML, or the child's end, said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// The state of the probe's NVML child.
#[derive(Serialize, Deserialize, JsonSchema, IntoStaticStr, EnumIter, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NvmlState {
    /// No library, or no loaded module: there is nothing to ask.
    #[default]
    Absent,
    /// NVML answers; the inventory is from it.
    Answering,
    /// NVML was asked and failed, hung or crashed; `message` says how.
    Failing,
    /// The driver was let go, as `GpuNode.spec.releaseDriver` asks. No process of the probe holds it.
    Released,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
