//! The probe's report about its node, including the health of each GPU. Only the probe writes it.

mod driver;
mod runtimes;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumIter, IntoStaticStr};

pub use self::{
    driver::{CudaError, DriverFacts, Holder, InstalledDriver},
    runtimes::{CDI_SPECS, HostRuntime, LoadedRuntime},
};
use crate::{
    health::GpuHealth,
    open::{self, is_default},
};

/// The directory on the host at which NVIDIA's driver container mounts its root.
pub const CONTAINER_ROOT: &str = "/run/nvidia/driver";
/// The file in which a driver's container records what it is waiting for before it starts.
pub const WAITS_FILE: &str = "/run/nvidia/driver-waits";
/// The host's root directory.
pub const HOST_ROOT: &str = "/";
/// The directory on the host in which Google's installers place the driver, and in which GKE and Google's device plugin
/// expect it. It is not a root file system: the library uses the host's /dev.
pub const GKE_ROOT: &str = "/home/kubernetes/bin/nvidia";
/// The directories that the probe searches for a driver, in order of preference, in addition to
/// `GpuNode.spec.driverRoot`. A driver that the operator installed takes precedence over the host's own.
pub const DRIVER_ROOTS: [&str; 3] = [CONTAINER_ROOT, HOST_ROOT, GKE_ROOT];
/// The directories for the toolkit, in order of preference. `/usr/local` is read-only on some systems, and `/opt` too on
/// Container-Optimized OS, where also most of `/var` and `/home` is not executable.
pub const TOOLKIT_FOLDERS: [&str; 5] =
    ["/usr/local/nvidia", "/opt/nvidia", "/var/lib/nvidia", GKE_ROOT, "/var/lib/google/nvidia"];

/// The probe's observations of a node. The report is written only when one of them changes.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Version of the probe that wrote the report.
    #[schemars(length(max = 64))]
    #[serde(default)]
    pub probe_version: String,
    /// The kernel's boot ID (`/proc/sys/kernel/random/boot_id`), which changes with every boot.
    #[schemars(length(max = 64))]
    #[serde(rename = "bootID", default)]
    pub boot_id: String,
    /// The host's operating system, from `/etc/os-release`.
    #[serde(default)]
    pub os: OsRelease,
    /// Whether SELinux is enabled with a policy that has the type `spc_t`, so that containers need it to use files of the
    /// host. Absent if the policy could not be read.
    #[serde(rename = "seLinux", default, skip_serializing_if = "Option::is_none")]
    pub selinux: Option<bool>,
    /// The directory for the toolkit: the first of `/usr/local/nvidia`, `/opt/nvidia`, `/var/lib/nvidia`,
    /// `/home/kubernetes/bin/nvidia` and `/var/lib/google/nvidia` that is on a file system that is mounted writable and
    /// executable, or of these the one in which the toolkit is installed. Absent if there is none, or if the mounts could not
    /// be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub toolkit_folder: Option<String>,
    /// The machine's product name from its firmware (DMI), such as `PowerEdge R750`. Absent if the firmware reports
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub machine: Option<String>,
    /// All NVIDIA GPUs on the PCI bus that are not passed through to a virtual machine, by address.
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// The number of NVIDIA GPUs for virtual machines: those bound to a vfio driver or `pci-stub`, and those whose virtual
    /// functions are in use. They are not listed in `gpus`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub passed_through: u32,
    /// The PCI addresses of these GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 32)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub passed_through_at: Vec<String>,
    /// Whether the GPUs are virtual GPUs of a hypervisor, according to their PCI configuration. Absent if the
    /// configuration could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vgpu: Option<VirtualGpus>,
    /// NVIDIA's bridges on the PCI bus, such as `NVSwitches`. Absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridges: Option<Bridges>,
    /// The driver's state on the host.
    #[serde(default)]
    pub driver: DriverFacts,
    /// The pods to which kubelet has assigned GPUs. Absent unless `GpuNode.spec.reportHolders` requests them, and if kubelet does not serve
    /// its pod resources socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_pods: Option<GpuPods>,
    /// The state of NVML.
    #[serde(default)]
    pub nvml: NvmlFacts,
    /// NVIDIA runtimes that are part of the host, such as those of a machine image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub runtimes: Vec<HostRuntime>,
    /// The configuration that container runtimes have loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub loaded_runtimes: Vec<LoadedRuntime>,
}

/// The pods to which kubelet has assigned GPUs: devices of resources that begin with `nvidia.com/`, of those in
/// `GpuNode.status.pastResourceNames`, and of claims that the DRA driver `gpu.nvidia.com` has allocated.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GpuPods {
    /// The number of pods.
    #[serde(default)]
    pub count: u32,
    /// The first ten pods by name, as `<namespace>/<name>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), inner(length(max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub names: Vec<String>,
}

/// The fields of `/etc/os-release` that determine the driver image.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OsRelease {
    /// `ID`, such as `ubuntu`.
    #[schemars(length(max = 64))]
    #[serde(default)]
    pub id: String,
    /// `VERSION_ID`, such as `22.04`.
    #[schemars(length(max = 64))]
    #[serde(rename = "versionID", default)]
    pub version_id: String,
}

/// Whether a machine's GPUs are virtual, and the hypervisor's driver.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VirtualGpus {
    /// Whether any GPU is virtual.
    #[serde(default)]
    pub present: bool,
    /// Version of the hypervisor's driver, such as `550.90`, if a virtual GPU reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub host_driver_version: Option<String>,
    /// Branch of the hypervisor's driver, such as `r550_00`, if a virtual GPU reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub host_driver_branch: Option<String>,
}

/// NVIDIA's bridges on the PCI bus (class `0680`). On a machine with `NVSwitches`, CUDA works only while a fabric manager runs.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Bridges {
    /// The number of bridges.
    #[serde(default)]
    pub count: u32,
    /// The PCI device IDs that occur, without the vendor, such as `22a3`.
    #[serde(rename = "deviceIDs", default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 8)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub device_ids: Vec<String>,
    /// Whether a process `nv-fabricmanager` runs on the machine. Absent if its processes could not be listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric_manager: Option<bool>,
}

/// A GPU. Fields that come from NVML are absent until the driver works.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// PCI address, such as `0000:06:00.0`. It identifies the GPU, as a lost GPU has no UUID.
    #[schemars(length(max = 32))]
    #[serde(default)]
    pub pci_address: String,
    /// PCI device ID without the vendor, four hexadecimal digits, such as `102d`.
    #[schemars(length(max = 8))]
    #[serde(rename = "deviceID", default)]
    pub device_id: String,
    /// PCI class, six hexadecimal digits: `030200` is a 3D controller, `030000` a VGA controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub pci_class: Option<String>,
    /// The kernel driver that the GPU is bound to, if it is not NVIDIA's, such as `nouveau`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub held_by: Option<String>,
    /// Product name, from NVML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub product: Option<String>,
    /// UUID, from NVML: `GPU-…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 96))]
    pub uuid: Option<String>,
    /// Memory (frame buffer), in MiB.
    #[serde(rename = "memoryMiB", default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// CUDA compute capability, such as `9.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub compute_capability: Option<String>,
    /// Whether the GPU supports MIG. Absent if this is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_capable: Option<bool>,
    /// The GPU's clique in an NVLink fabric that spans machines, as `<cluster UUID>.<clique number>`. Absent if the GPU
    /// has not joined a fabric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub fabric_clique: Option<String>,
    /// The GPU's MIG devices, by profile. Absent if MIG mode is off or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub mig_devices: Option<Vec<MigDevices>>,
    /// Health of the GPU.
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
    /// The number of devices.
    #[serde(default)]
    pub count: u32,
    /// Attributes of each device. Absent if NVML does not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<MigAttributes>,
}

/// Attributes of a MIG device. Engines belong to its GPU instance and are shared by the compute instances of that.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MigAttributes {
    /// Memory, in MiB.
    #[serde(rename = "memoryMiB", default)]
    pub memory_mib: u64,
    /// The number of streaming multiprocessors.
    #[serde(default)]
    pub multiprocessors: u32,
    /// The number of slices of the GPU that the device's GPU instance uses.
    #[serde(default)]
    pub gpu_slices: u32,
    /// The number of slices of the GPU instance that the device's compute instance uses.
    #[serde(default)]
    pub compute_slices: u32,
    /// The number of copy engines.
    #[serde(default)]
    pub copy_engines: u32,
    /// The number of video decoders.
    #[serde(default)]
    pub decoders: u32,
    /// The number of video encoders.
    #[serde(default)]
    pub encoders: u32,
    /// The number of JPEG engines.
    #[serde(default)]
    pub jpeg_engines: u32,
    /// The number of optical flow accelerators.
    #[serde(default)]
    pub ofa_engines: u32,
}

/// The state of NVML.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NvmlFacts {
    /// The state of the probe's NVML process.
    #[serde(default, deserialize_with = "open::or_default")]
    pub state: NvmlState,
    /// The number of GPUs that NVML counts, including those that it cannot open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// The error of NVML, or the reason why the NVML process ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// The state of the probe's NVML process.
#[derive(Serialize, Deserialize, JsonSchema, IntoStaticStr, EnumIter, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NvmlState {
    /// There is no NVML library or no loaded kernel module.
    #[default]
    Absent,
    /// NVML works. The report's GPU details are from NVML.
    Answering,
    /// NVML failed, hung or crashed; see `message`.
    Failing,
    /// The driver has been released, as requested by `GpuNode.spec.releaseDriver`. No process of the probe uses it.
    Released,
}
