//! The facts about pods that diagnosis uses.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpu_operator_common::quantity;
use gpu_operator_crd::keys;
use gpu_operator_plan::{time::later, world::Placement};
use k8s_openapi::{
    api::core::v1::{Container as Declared, HostPathVolumeSource, Pod, PodSpec},
    apimachinery::pkg::api::resource::Quantity,
    jiff::Timestamp,
};
use kube::ResourceExt;

/// The prefix of NVIDIA's resource names.
const NVIDIA: &str = "nvidia.com/";

/// The resource name of GPUs before Kubernetes 1.10. No kubelet offers it any more.
pub const LEGACY_RESOURCE: &str = "alpha.kubernetes.io/nvidia-gpu";

/// A pod that involves GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PendingPod {
    /// Whether it is part of the node's infrastructure, such as a driver installer: owned by a DaemonSet, or of a system
    /// priority class.
    pub equipment: bool,
    pub node: Option<String>,
    pub created: Option<Timestamp>,
    pub state: State,
    pub claims: bool,
    pub runtime_class: Option<String>,
    pub placement: Placement,
    /// Init containers and containers.
    pub containers: Vec<Container>,
    pub driver_mounts: Vec<DriverMount>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// A node, or the start of its containers.
    #[default]
    Waiting,
    /// Has a scheduling gate.
    Held,
    Deleting,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    pub name: String,
    /// Whether it is an init container, which ends before the main containers start.
    pub init: bool,
    pub image: String,
    pub privileged: bool,
    /// The amount that it requests of each GPU resource, by requests or limits.
    pub requests: BTreeMap<String, u64>,
    /// `NVIDIA_REQUIRE_CUDA`.
    pub require_cuda: Option<String>,
    /// Whether `NVIDIA_DISABLE_REQUIRE` is set, so that its image's requirements are ignored.
    pub disable_require: bool,
    /// `NVIDIA_VISIBLE_DEVICES`.
    pub visible_devices: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverMount {
    pub path: String,
    pub container: String,
    pub privileged: bool,
}

impl PendingPod {
    /// Returns a pod's facts, or `None` if it does not involve GPUs.
    pub fn of(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let init = spec.init_containers.iter().flatten().map(|container| Container::of(container, true));
        let plain = spec.containers.iter().map(|container| Container::of(container, false));
        let facts = Self {
            equipment: is_equipment(pod, spec),
            node: spec.node_name.clone().filter(|node| !node.is_empty()),
            created: pod.creation_timestamp().map(|time| time.0),
            state: if pod.metadata.deletion_timestamp.is_some() {
                State::Deleting
            } else if spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
                State::Held
            } else {
                State::Waiting
            },
            claims: spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()),
            runtime_class: spec.runtime_class_name.clone(),
            placement: Placement::of(spec),
            containers: init.chain(plain).collect(),
            driver_mounts: driver_mounts(spec),
        };
        facts.concerns_gpus().then_some(facts)
    }

    fn concerns_gpus(&self) -> bool {
        let requests = |container: &Container| !container.requests.is_empty() || container.visible_devices.is_some();
        self.containers.iter().any(requests)
            || !self.driver_mounts.is_empty()
            || self.runtime_class.as_ref().is_some_and(|class| class.starts_with("nvidia"))
    }

    /// Returns the amount that it requests of each of NVIDIA's resources. Init containers end before the main containers start,
    /// so the larger of the two amounts counts.
    pub fn requests(&self) -> BTreeMap<&str, u64> {
        let mut requests = BTreeMap::<&str, (u64, u64)>::new();
        for container in &self.containers {
            for (resource, count) in container.requests.iter().filter(|(resource, _)| resource.starts_with(NVIDIA)) {
                let (init, plain) = requests.entry(resource).or_default();
                if container.init {
                    *init = (*init).max(*count);
                } else {
                    *plain = plain.saturating_add(*count);
                }
            }
        }
        requests.into_iter().map(|(resource, (init, plain))| (resource, init.max(plain))).collect()
    }

    /// Returns when it will have waited for `grace`.
    pub fn due(&self, grace: Duration) -> Timestamp {
        self.created.map_or(Timestamp::MIN, |created| later(created, grace))
    }
}

impl Container {
    fn of(container: &Declared, init: bool) -> Self {
        // If a name is set twice, the last value applies, as in the container itself.
        let env = |name: &str| {
            let mut all = container.env.iter().flatten().rev();
            all.find(|env| env.name == name)?.value.clone()
        };
        let resources = container.resources.as_ref();
        let given = [resources.and_then(|r| r.requests.as_ref()), resources.and_then(|r| r.limits.as_ref())];
        let mut requests = BTreeMap::new();
        for (resource, quantity) in given.into_iter().flatten().flatten() {
            if let Some(count) = gpu_count(resource, quantity) {
                requests.insert(resource.clone(), count);
            }
        }
        Self {
            name: container.name.clone(),
            init,
            image: container.image.clone().unwrap_or_default(),
            privileged: is_privileged(container),
            requests,
            require_cuda: env("NVIDIA_REQUIRE_CUDA"),
            disable_require: env("NVIDIA_DISABLE_REQUIRE").is_some_and(|value| !value.is_empty()),
            visible_devices: env("NVIDIA_VISIBLE_DEVICES"),
        }
    }

    pub fn requests_gpus(&self) -> bool {
        self.requests.keys().any(|resource| resource.starts_with(NVIDIA))
    }
}

/// Returns the requested amount of a resource, or `None` if it is not a GPU resource or the amount is zero.
fn gpu_count(resource: &str, quantity: &Quantity) -> Option<u64> {
    let is_gpu = resource == keys::GPU_RESOURCE
        || resource.starts_with("nvidia.com/gpu.")
        || resource.starts_with("nvidia.com/mig-")
        || resource == LEGACY_RESOURCE;
    quantity::count(&quantity.0).ok().map(u64::from).filter(|count| is_gpu && *count > 0)
}

fn is_privileged(container: &Declared) -> bool {
    container.security_context.as_ref().and_then(|context| context.privileged).unwrap_or_default()
}

fn is_equipment(pod: &Pod, spec: &PodSpec) -> bool {
    let of_node = |kind: &str| matches!(kind, "DaemonSet" | "Node");
    pod.owner_references().iter().any(|owner| of_node(&owner.kind))
        || spec.priority_class_name.as_ref().is_some_and(|class| class.starts_with("system-"))
}

fn driver_mounts(spec: &PodSpec) -> Vec<DriverMount> {
    let path = |source: &HostPathVolumeSource| Some(source.path.clone()).filter(|path| is_driver(path));
    let volumes: BTreeMap<&str, String> = spec
        .volumes
        .iter()
        .flatten()
        .filter_map(|volume| Some((volume.name.as_str(), path(volume.host_path.as_ref()?)?)))
        .collect();
    let mut seen = BTreeSet::new();
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.flat_map(|container| {
        container.volume_mounts.iter().flatten().map(move |mount| (container, mount.name.as_str()))
    })
    .filter_map(|(container, volume)| {
        let path = volumes.get(volume)?;
        seen.insert((volume, container.name.as_str())).then(|| DriverMount {
            path: path.clone(),
            container: container.name.clone(),
            privileged: is_privileged(container),
        })
    })
    .collect()
}

/// Directories of the driver, on systems where pods commonly mount them.
const FOLDERS: [&str; 5] = [
    "/home/kubernetes/bin/nvidia",
    "/var/lib/nvidia",
    "/var/lib/nvidia-docker",
    "/usr/local/nvidia",
    "/run/nvidia/driver",
];

/// Directories with libraries of other packages, in which the driver's own directory is named `nvidia…`.
const LIBRARIES: [&str; 5] =
    ["/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];

/// IMEX channels are deliberately passed to pods through this mount.
const IMEX: &str = "/dev/nvidia-caps-imex-channels";

/// The default directory of the container toolkit, which is not part of the driver.
const TOOLKIT: &str = "/usr/local/nvidia/toolkit";

pub fn is_driver(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let within = |folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if within(IMEX) || within(TOOLKIT) {
        return false;
    }
    let beside = |folder: &str| {
        let rest = path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
        rest.is_some_and(|rest| ["nvidia", "libcuda.so", "libnvidia-"].iter().any(|driver| rest.starts_with(driver)))
    };
    path.starts_with("/dev/nvidia")
        || FOLDERS.iter().any(|folder| within(folder))
        || LIBRARIES.iter().any(|folder| beside(folder))
}
