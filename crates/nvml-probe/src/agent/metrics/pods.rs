//! Which containers have a GPU, by the ids of the devices that kubelet has assigned to them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gpu_host::{
    nvml::protocol::MigId,
    observe::pod_resources::{Assignment, Source},
};
use gpu_operator_crd::keys;

/// What identifies a GPU among the ids of device plugins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gpu<'a> {
    pub uuid: &'a str,
    /// The number in `/dev/nvidia<number>`.
    pub minor: Option<u32>,
    pub mig: &'a [MigId],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Container<'a> {
    namespace: &'a str,
    pod: &'a str,
    name: &'a str,
}

/// What a device is of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    Whole,
    Mig(&'a MigId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use<'a> {
    container: Container<'a>,
    resource: &'a str,
    part: Part<'a>,
}

/// Returns the labels of a series for each container and device of a GPU: of the GPU itself, or of one of its MIG devices. Replicas of a
/// shared device are counted in a label.
pub(super) fn containers(gpu: Gpu<'_>, assignments: &[Assignment]) -> Vec<Vec<(&'static str, String)>> {
    let labels = |(of, replicas): (Use<'_>, BTreeSet<&str>)| {
        let Container { namespace, pod, name } = of.container;
        let of_container = [("namespace", namespace), ("pod", pod), ("container", name), ("resource", of.resource)];
        let mut labels: Vec<_> = of_container.map(|(name, value)| (name, value.to_owned())).into();
        if let Part::Mig(mig) = of.part {
            labels.push(("mig_uuid", mig.uuid.clone()));
            labels.push(("mig_profile", mig.profile.clone()));
        }
        if !replicas.is_empty() {
            labels.push(("replicas", replicas.len().to_string()));
        }
        labels
    };
    uses(gpu, assignments).into_iter().map(labels).collect()
}

/// Returns the containers' parts of a GPU, with the ids of the replicas. Kubelet lists each device of a container on
/// its own, and devices of several NUMA nodes several times.
fn uses<'a>(gpu: Gpu<'a>, assignments: &'a [Assignment]) -> BTreeMap<Use<'a>, BTreeSet<&'a str>> {
    let mut uses: BTreeMap<Use<'_>, BTreeSet<&str>> = BTreeMap::new();
    for Assignment { namespace, pod, container, source, devices } in assignments {
        let container = Container { namespace, pod, name: container };
        let (Source::Resource(resource) | Source::Claim(resource)) = source;
        for id in devices {
            let (device, shared) = without_replica(id);
            if let Some(part) = part(gpu, source, device) {
                uses.entry(Use { container, resource, part }).or_default().extend(shared.then_some(id.as_str()));
            }
        }
    }
    uses
}

/// Splits off the number of a replica: `GPU-…::2` of NVIDIA's device plugin, `nvidia0/vgpu2` of Google's. Returns whether there was one.
fn without_replica(id: &str) -> (&str, bool) {
    let split = id.split_once("::").or_else(|| id.split_once("/vgpu"));
    split.map_or((id, false), |(device, _)| (device, true))
}

/// Returns what a device is of this GPU; `None` if it belongs to another one.
fn part<'a>(gpu: Gpu<'a>, source: &Source, device: &str) -> Option<Part<'a>> {
    let resource = match source {
        Source::Resource(resource) => resource,
        Source::Claim(driver) => return claimed(gpu, driver, device),
    };
    if device == gpu.uuid && !device.is_empty() {
        return Some(Part::Whole);
    }
    if let Some(mig) = gpu.mig.iter().find(|mig| mig.uuid == device) {
        return Some(Part::Mig(mig));
    }
    // Google's plugin has this resource only.
    let device = device.strip_prefix("nvidia").filter(|_| resource == "nvidia.com/gpu")?;
    let (minor, instance) = device.split_once("/gi").map_or((device, None), |(minor, id)| (minor, Some(id)));
    if minor.parse().ok() != Some(gpu.minor?) {
        return None;
    }
    let Some(instance) = instance else { return Some(Part::Whole) };
    let instance = instance.parse().ok()?;
    gpu.mig.iter().find(|mig| mig.gpu_instance == Some(instance)).map(Part::Mig)
}

/// As [`part`], for a device of NVIDIA's DRA driver, which calls a whole GPU `gpu-<minor>`.
fn claimed<'a>(gpu: Gpu<'a>, driver: &str, device: &str) -> Option<Part<'a>> {
    let minor = device.strip_prefix("gpu-").filter(|_| driver == keys::GPU_DRIVER)?.parse::<u32>().ok()?;
    (minor == gpu.minor?).then_some(Part::Whole)
}
