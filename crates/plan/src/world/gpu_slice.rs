//! The GPUs of nodes that a DRA driver allocates, by its slices of devices: only a node's kubelet and its drivers write these.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{NodeName, keys::GPU_DRIVER};
use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// The devices that are whole GPUs, by their attribute `type`. Others are MIG devices and GPUs for virtual machines.
const GPU: &str = "gpu";
/// The API's limit of devices in a slice.
const MAX_DEVICES: usize = 128;
const MAX_UUID: usize = 64;

/// A slice of devices, with what is read of each.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default)]
#[kube(group = "resource.k8s.io", version = "v1", kind = "ResourceSlice", schema = "disabled")]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceSliceSpec {
    driver: String,
    node_name: Option<String>,
    pool: SlicePool,
    devices: Vec<Device>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct SlicePool {
    name: String,
    generation: i64,
    resource_slice_count: i64,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct Device {
    attributes: Attributes,
    taints: Vec<DeviceTaint>,
}

/// The driver may write an attribute's name with its domain.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct Attributes {
    #[serde(rename = "type", alias = "gpu.nvidia.com/type")]
    kind: Text,
    #[serde(alias = "gpu.nvidia.com/uuid")]
    uuid: Text,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct Text {
    string: String,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct DeviceTaint {
    effect: String,
}

/// A slice of a node's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuSlice {
    pub node: NodeName,
    pub pool: Interned,
    pub generation: i64,
    /// How many slices the pool has at this generation.
    pub of_slices: i64,
    pub gpus: Vec<SliceGpu>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SliceGpu {
    pub uuid: Box<str>,
    /// Whether a taint keeps new claims away.
    pub tainted: bool,
}

impl GpuSlice {
    /// Returns `None` for the slices of other drivers, and for those of devices that belong to no node.
    pub fn of(slice: &ResourceSlice) -> Option<Self> {
        let ResourceSliceSpec { driver, node_name, pool, devices } = &slice.spec;
        let node = node_name.as_deref().filter(|_| driver == GPU_DRIVER)?;
        let gpus = devices.iter().take(MAX_DEVICES).filter(|device| device.attributes.kind.string == GPU);
        let gpu = |device: &Device| SliceGpu {
            uuid: device.attributes.uuid.string.chars().take(MAX_UUID).collect::<String>().into_boxed_str(),
            // Other effects, and those of later versions, keep no claim away.
            tainted: device.taints.iter().any(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")),
        };
        Some(Self {
            node: node.into(),
            pool: Interned::from(&pool.name),
            generation: pool.generation,
            of_slices: pool.resource_slice_count,
            gpus: gpus.map(gpu).collect(),
        })
    }
}

/// The GPUs that a node's slices publish. A pool counts only at its highest generation, and once all its slices are there: until then the
/// scheduler allocates none of its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedGpus {
    /// The UUIDs of those that claims can get.
    pub usable: BTreeSet<Box<str>>,
    pub tainted: BTreeSet<Box<str>>,
    /// Whether there is any slice, complete or not, with GPUs or without.
    pub has_slices: bool,
}

impl PublishedGpus {
    pub fn of<'s>(slices: impl IntoIterator<Item = &'s GpuSlice>) -> Self {
        let mut pools: BTreeMap<&Interned, Vec<&GpuSlice>> = BTreeMap::new();
        for slice in slices {
            pools.entry(&slice.pool).or_default().push(slice);
        }
        let mut published = Self { has_slices: !pools.is_empty(), ..Self::default() };
        for slices in pools.into_values() {
            let newest = slices.iter().map(|slice| slice.generation).max();
            let current: Vec<_> = slices.into_iter().filter(|slice| Some(slice.generation) == newest).collect();
            let is_complete = current.iter().all(|slice| i64::try_from(current.len()) == Ok(slice.of_slices));
            for gpu in current.iter().filter(|_| is_complete).flat_map(|slice| &slice.gpus) {
                let gpus = if gpu.tainted { &mut published.tainted } else { &mut published.usable };
                gpus.insert(gpu.uuid.clone());
            }
        }
        published
    }

    pub fn count(&self) -> u32 {
        u32::try_from(self.usable.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(spec: &str) -> Option<GpuSlice> {
        let text =
            format!("{{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {{name: s}}, spec: {spec}}}");
        GpuSlice::of(&serde_yaml::from_str(&text).unwrap())
    }

    #[test]
    fn only_slices_of_a_nodes_gpus_count() {
        for (spec, node) in [
            ("{driver: gpu.nvidia.com, nodeName: a, pool: {name: a}, devices: [{name: gpu-0}]}", Some("a")),
            ("{driver: gpu.nvidia.com, allNodes: true}", None),
            ("{driver: compute-domain.nvidia.com, nodeName: a}", None),
            ("{driver: gpu.example.com, nodeName: a}", None),
        ] {
            assert_eq!(slice(spec).map(|slice| slice.node), node.map(NodeName::from), "{spec}");
        }
    }

    /// Returns a slice of pool `a` with these devices.
    fn part(generation: i64, of_slices: i64, devices: &str) -> GpuSlice {
        let pool = format!("{{name: a, generation: {generation}, resourceSliceCount: {of_slices}}}");
        slice(&format!("{{driver: gpu.nvidia.com, nodeName: a, pool: {pool}, devices: [{devices}]}}")).unwrap()
    }

    fn gpu(uuid: &str, rest: &str) -> String {
        format!("{{name: g, attributes: {{type: {{string: gpu}}, uuid: {{string: {uuid}}}}}{rest}}}")
    }

    #[test]
    fn gpus_without_taints_of_complete_pools_are_usable() {
        let mig = "{name: m, attributes: {type: {string: mig}, uuid: {string: M}}}".to_owned();
        let named = "{name: g, attributes: {gpu.nvidia.com/type: {string: gpu}, gpu.nvidia.com/uuid: {string: N}}}";
        let taints =
            |effect: &str| gpu("T", &format!(", taints: [{{key: gpu.nvidia.com/xid, value: '79', effect: {effect}}}]"));
        for (case, slices, usable, tainted) in [
            ("one slice", vec![part(1, 1, &gpu("A", ""))], "A", ""),
            ("two slices", vec![part(1, 2, &gpu("A", "")), part(1, 2, &gpu("B", ""))], "A B", ""),
            ("a slice is missing", vec![part(1, 2, &gpu("A", ""))], "", ""),
            ("an older generation", vec![part(1, 1, &gpu("A", "")), part(2, 1, &gpu("B", ""))], "B", ""),
            ("another device", vec![part(1, 1, &mig)], "", ""),
            ("names with a domain", vec![part(1, 1, named)], "N", ""),
            ("XID 79", vec![part(1, 1, &taints("NoSchedule"))], "", "T"),
            ("evicted", vec![part(1, 1, &taints("NoExecute"))], "", "T"),
            ("only a note", vec![part(1, 1, &taints("None"))], "T", ""),
            ("no slice", vec![], "", ""),
        ] {
            let published = PublishedGpus::of(&slices);
            let words = |gpus: &BTreeSet<Box<str>>| gpus.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ");
            assert_eq!(
                (words(&published.usable).as_str(), words(&published.tainted).as_str()),
                (usable, tainted),
                "{case}"
            );
            assert_eq!(published.has_slices, !slices.is_empty(), "{case}");
        }
    }
}
