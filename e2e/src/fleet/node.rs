//! One simulated node, as plain data, and the Node object that it registers with.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    GpuHealth, keys,
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

use super::machine::Gpus;
use crate::real_node::HostDriver;

/// The label by which kwok knows the nodes whose leases it keeps.
const KWOK: (&str, &str) = ("type", "kwok");
/// The label that every node of a fleet bears, for policies that are meant for it alone.
pub const MEMBER: (&str, &str) = ("fleet.example.com/member", "true");

/// A simulated node. What a test does not care for it takes from [`FleetNode::with_gpus`] or [`FleetNode::without_gpus`].
#[derive(Clone, Debug, PartialEq)]
pub struct FleetNode {
    /// The Node's name.
    pub name: String,
    /// The PCI device id of each GPU, such as `2330`, in the order of their addresses.
    pub gpus: Vec<String>,
    /// What the probe makes of GPUs while NVML answers, by their place in `gpus`; one that is not here is well.
    pub health: BTreeMap<usize, GpuHealth>,
    /// What `/etc/os-release` says.
    pub os: OsRelease,
    /// Processor architecture in Kubernetes' words.
    pub arch: String,
    /// What kubelet says of its container runtime.
    pub runtime: String,
    /// The kernel's release.
    pub kernel: String,
    /// Kubelet's version, by which some distributions are known.
    pub kubelet: String,
    /// Labels beside those that every node has.
    pub labels: BTreeMap<String, String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// The driver that the node's own system brings.
    pub host_driver: HostDriver,
    /// Where on the host that driver lies.
    pub host_driver_root: String,
    /// NVIDIA's runtimes that the node's own system brings.
    pub host_runtimes: Vec<HostRuntime>,
    /// What else the Node object carries, for its size.
    pub stuffing: Stuffing,
    /// How the node behaves.
    pub behaviour: Behaviour,
}

/// What a Node object of a real cluster is full of, and no test looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stuffing {
    /// How many labels it has at least, all counted.
    pub labels: usize,
    /// How many images it lists.
    pub images: usize,
}

impl Stuffing {
    /// As on a node with feature discovery that has run for some weeks: kubelet lists at most 50 images.
    pub const REAL: Self = Self { labels: 90, images: 50 };
}

/// How a node behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// Whether its probe reports.
    pub reports: bool,
    /// How long each operand takes to be pulled and started, in seconds, once its gates are open.
    pub pod_seconds: u32,
    /// What becomes of the driver's container.
    pub driver: DriverBehaviour,
    /// How many GPUs kubelet publishes, if not all that are on the bus.
    pub publishes: Option<u32>,
    /// What NVML fails with, if it fails.
    pub nvml_failure: Option<String>,
}

/// What becomes of a driver's container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DriverBehaviour {
    /// It loads what it is asked for.
    #[default]
    Ok,
    /// Its image cannot be pulled.
    ImageMissing,
    /// It crashes with these words.
    Crash(String),
    /// It loads this version, whatever it is asked for.
    Loads(String),
}

impl Default for Behaviour {
    fn default() -> Self {
        Self { reports: true, pod_seconds: 0, driver: DriverBehaviour::Ok, publishes: None, nvml_failure: None }
    }
}

impl FleetNode {
    /// An Ubuntu node with `count` GPUs of one PCI device id and no driver.
    #[must_use]
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
            kubelet: "v1.36.3".to_owned(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            host_driver: HostDriver::Absent,
            host_driver_root: "/".to_owned(),
            host_runtimes: Vec::new(),
            stuffing: Stuffing::default(),
            behaviour: Behaviour::default(),
        }
    }

    /// An Ubuntu node without GPUs.
    #[must_use]
    pub fn without_gpus(name: &str) -> Self {
        Self::with_gpus(name, "", 0)
    }

    /// The driver version of the host, and whether its module is loaded.
    pub(super) fn own_driver(&self) -> Option<(&str, bool)> {
        match &self.host_driver {
            HostDriver::Absent => None,
            HostDriver::Installed(version) => Some((version, false)),
            HostDriver::Loaded(version) => Some((version, true)),
        }
    }

    /// The Node as kubelet registers it: Ready from the start.
    pub(super) fn object(&self, now: Timestamp) -> Node {
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
                images: (self.stuffing.images > 0).then(|| (0..self.stuffing.images).map(image).collect()),
                node_info: Some(NodeSystemInfo {
                    architecture: self.arch.clone(),
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
            KWOK,
            MEMBER,
            ("kubernetes.io/arch", &self.arch),
            ("kubernetes.io/hostname", &self.name),
            ("kubernetes.io/os", "linux"),
        ] {
            labels.insert(key.to_owned(), value.to_owned());
        }
        for index in 0..self.stuffing.labels.saturating_sub(labels.len()) {
            labels.insert(format!("feature.example.com/cpu-cpuid.EXTENSION-{index:03}"), "true".to_owned());
        }
        labels
    }

    /// The name of the GPU at this index, everywhere and for ever the same.
    pub(super) fn gpu_uuid(&self, index: usize) -> String {
        format!("GPU-{}-{index:02}", self.name)
    }
}

/// An operating system by the two words of its `/etc/os-release`.
#[must_use]
pub fn os(id: &str, version_id: &str) -> OsRelease {
    OsRelease { id: id.to_owned(), version_id: version_id.to_owned() }
}

/// A node's conditions while its kubelet posts status, or as the controller manager leaves them when it no longer does.
pub(super) fn conditions(alive: bool, now: Timestamp) -> Vec<NodeCondition> {
    let condition = |kind: &str, well: &str| NodeCondition {
        type_: kind.to_owned(),
        status: if alive { well } else { "Unknown" }.to_owned(),
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

/// The patch of a Node's status by which kubelet publishes GPUs.
pub(super) fn published(gpus: Gpus) -> serde_json::Value {
    let shared = format!("{}.shared", keys::GPU_RESOURCE);
    let (here, there) =
        if gpus.renamed { (shared.as_str(), keys::GPU_RESOURCE) } else { (keys::GPU_RESOURCE, shared.as_str()) };
    // What is offered by one name now is no longer by the other.
    let resources = serde_json::json!({here: gpus.count.to_string(), there: null});
    serde_json::json!({"status": {"allocatable": resources, "capacity": resources}})
}

fn image(index: usize) -> ContainerImage {
    let name = format!("registry.example.com/team-{:02}/service-{index:03}", index % 7);
    ContainerImage {
        names: Some(vec![format!("{name}@sha256:{index:064x}"), format!("{name}:1.{index}.0")]),
        size_bytes: Some(100_000_000 + i64::try_from(index).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;

    use super::*;

    #[test]
    fn a_stuffed_node_has_the_labels_and_images_of_a_real_one_and_its_own() {
        let mut node = FleetNode::with_gpus("a", "2330", 8);
        node.stuffing = Stuffing::REAL;
        node.labels.insert("zone".into(), "z".into());
        let object = node.object(Timestamp::UNIX_EPOCH);
        assert_eq!(object.labels().len(), 90);
        assert_eq!((object.labels()["zone"].as_str(), object.labels()["type"].as_str()), ("z", "kwok"));
        assert_eq!(object.status.unwrap().images.unwrap().len(), 50);
    }
}
