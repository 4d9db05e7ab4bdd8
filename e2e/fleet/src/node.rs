//! A simulated node as plain data, and the Node object that its kubelet registers.

use std::collections::BTreeMap;

use cluster::node::real_node::HostDriver;
use gpu_operator_crd::{
    GpuHealth, NodeName,
    report::{HostRuntime, OsRelease},
};
use k8s_openapi::{
    api::core::v1::{ContainerImage, Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo, Taint},
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ObjectMeta, Time},
    },
    jiff::Timestamp,
};
use test_support::sim::{Faults, Sim};

/// The label of nodes whose leases kwok renews.
const KWOK_LABEL: (&str, &str) = ("type", "kwok");
/// The label of every node of a fleet, for policies that select only these nodes.
pub const MEMBER_LABEL: (&str, &str) = ("fleet.example.com/member", "true");

/// A simulated node. [`FleetNode::with_gpus`] and [`FleetNode::without_gpus`] have defaults for all fields.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetNode {
    pub name: String,
    /// The PCI device id of each GPU, such as `2330`, in the order of their addresses.
    pub gpus: Vec<String>,
    /// The health that the probe reports while NVML answers, by index in `gpus`. GPUs without an entry are healthy.
    pub health: BTreeMap<usize, GpuHealth>,
    /// The operating system, as in `/etc/os-release`.
    pub os: OsRelease,
    /// The processor architecture, as Kubernetes names it.
    pub arch: String,
    /// The container runtime, as kubelet reports it.
    pub runtime: String,
    /// The kernel release.
    pub kernel: String,
    /// The version of kubelet, which identifies some distributions.
    pub kubelet: String,
    /// Labels in addition to those that every node has.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// The driver of the node's own operating system image.
    pub host_driver: HostDriver,
    pub host_driver_root: String,
    /// NVIDIA's container runtimes of the node's own operating system image.
    pub host_runtimes: Vec<HostRuntime>,
    /// Further content of the Node object, for its size.
    pub padding: Padding,
    /// What is wrong with it.
    pub faults: Faults,
}

/// Content that makes a Node object as large as in a real cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Padding {
    /// The minimum number of labels, including all others.
    pub labels: usize,
    /// The number of listed images.
    pub images: usize,
}

impl Padding {
    /// The size of a node with feature discovery that has run for some weeks. Kubelet lists at most 50 images.
    pub const REALISTIC: Self = Self { labels: 90, images: 50 };
}

impl FleetNode {
    /// Returns an Ubuntu node with `count` GPUs of one PCI device id and no driver.
    pub fn with_gpus(name: &str, device_id: &str, count: usize) -> Self {
        Self {
            name: name.to_owned(),
            gpus: vec![device_id.to_owned(); count],
            health: BTreeMap::new(),
            // The last driver branch for Kepler has no image for a newer Ubuntu.
            os: os("ubuntu", if device_id == "102d" { "20.04" } else { "22.04" }),
            arch: "amd64".to_owned(),
            runtime: "containerd://2.1.4".to_owned(),
            kernel: "6.8.0-60-generic".to_owned(),
            kubelet: "v1.37.2".to_owned(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            host_driver: HostDriver::Absent,
            host_driver_root: "/".to_owned(),
            host_runtimes: Vec::new(),
            padding: Padding::default(),
            faults: Faults::default(),
        }
    }

    /// Returns an Ubuntu node without GPUs.
    pub fn without_gpus(name: &str) -> Self {
        Self::with_gpus(name, "", 0)
    }

    /// Returns the boot ID of its first boot.
    pub(super) fn boot_id(&self) -> String {
        format!("{}-boot", self.name)
    }

    /// Returns the model of the node as it has just booted.
    pub(super) fn sim(&self) -> Sim {
        let (mut sim, name) = (Sim::new(), NodeName::from(self.name.as_str()));
        sim.unloads_drivers = true;
        sim.join_silent(&name, &self.gpus.iter().map(String::as_str).collect::<Vec<_>>());
        sim.node_mut(&name).boot_id = self.boot_id().into();
        let report = sim.report(&name);
        env!("CARGO_PKG_VERSION").clone_into(&mut report.probe_version);
        report.boot_id = self.boot_id();
        report.os = self.os.clone();
        report.runtimes.clone_from(&self.host_runtimes);
        let root = &self.host_driver_root;
        match &self.host_driver {
            HostDriver::Absent => {}
            HostDriver::Installed(version) => sim.host_driver_in(root, &name, version, false),
            HostDriver::Loaded(version) => sim.host_driver_in(root, &name, version, true),
        }
        sim
    }

    /// Returns the Node object as kubelet registers it, Ready from the start.
    pub fn object(&self, now: Timestamp) -> Node {
        let resources = BTreeMap::from([
            ("cpu".to_owned(), Quantity("128".to_owned())),
            ("memory".to_owned(), Quantity("1Ti".to_owned())),
            ("pods".to_owned(), Quantity("110".to_owned())),
        ]);
        Node {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(self.all_labels()),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                taints: (!self.taints.is_empty()).then(|| self.taints.clone()),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                allocatable: Some(resources.clone()),
                capacity: Some(resources),
                conditions: Some(conditions(true, now)),
                addresses: Some(vec![NodeAddress { address: self.name.clone(), type_: "Hostname".to_owned() }]),
                images: (self.padding.images > 0).then(|| (0..self.padding.images).map(image).collect()),
                node_info: Some(NodeSystemInfo {
                    architecture: self.arch.clone(),
                    boot_id: self.boot_id(),
                    container_runtime_version: self.runtime.clone(),
                    kernel_version: self.kernel.clone(),
                    kubelet_version: self.kubelet.clone(),
                    operating_system: "linux".to_owned(),
                    os_image: format!("{} {}", self.os.id, self.os.version_id),
                    ..NodeSystemInfo::default()
                }),
                ..NodeStatus::default()
            }),
        }
    }

    fn all_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        for (key, value) in [
            KWOK_LABEL,
            MEMBER_LABEL,
            ("kubernetes.io/arch", &self.arch),
            ("kubernetes.io/hostname", &self.name),
            ("kubernetes.io/os", "linux"),
        ] {
            labels.insert(key.to_owned(), value.to_owned());
        }
        for index in 0..self.padding.labels.saturating_sub(labels.len()) {
            labels.insert(format!("feature.example.com/cpu-cpuid.EXTENSION-{index:03}"), "true".to_owned());
        }
        labels
    }

    /// Returns the UUID of the GPU at this index, which never changes.
    pub(super) fn gpu_uuid(&self, index: usize) -> String {
        format!("GPU-{}-{index:02}", self.name)
    }
}

/// Returns an operating system with these values of `ID` and `VERSION_ID` in its `/etc/os-release`.
pub fn os(id: &str, version_id: &str) -> OsRelease {
    OsRelease { id: id.to_owned(), version_id: version_id.to_owned() }
}

/// Returns a node's conditions: with `alive` as its kubelet posts them, otherwise as the controller manager sets them when
/// kubelet has stopped.
pub(super) fn conditions(alive: bool, now: Timestamp) -> Vec<NodeCondition> {
    let condition = |kind: &str, healthy: &str| NodeCondition {
        type_: kind.to_owned(),
        status: if alive { healthy } else { "Unknown" }.to_owned(),
        reason: Some(if alive { "KubeletReady" } else { "NodeStatusUnknown" }.to_owned()),
        message: Some(if alive { "" } else { "Kubelet stopped posting node status." }.to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    };
    ["MemoryPressure", "DiskPressure", "PIDPressure"]
        .into_iter()
        .map(|kind| condition(kind, "False"))
        .chain([condition("Ready", "True")])
        .collect()
}

fn image(index: usize) -> ContainerImage {
    let name = format!("registry.example.com/team-{:02}/service-{index:03}", index % 7);
    ContainerImage {
        names: Some(vec![format!("{name}@sha256:{index:064x}"), format!("{name}:1.{index}.0")]),
        size_bytes: Some(100_000_000 + i64::try_from(index).unwrap_or_default()),
    }
}
