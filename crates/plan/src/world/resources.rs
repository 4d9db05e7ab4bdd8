//! The allocatable GPU resources of a node, by name, and the layout in which a device plugin offers a GPU.

use std::collections::BTreeMap;

use gpu_operator_common::quantity;
use gpu_operator_crd::{
    keys,
    policy::{DevicePlugin, MigStrategy},
};
use k8s_openapi::{api::core::v1::PodSpec, apimachinery::pkg::api::resource::Quantity};
use serde::Serialize;
use serde_json::Value;

use gpu_operator_common::interned::Interned;

use crate::container_names::{CONFIG_WRITER, DRA_DRIVER};

/// Amounts of extended resources, by name. Each may be the name under which a third-party device plugin offers GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resources(Box<[(Interned, u32)]>);

impl Resources {
    /// Resources whose quantity cannot be parsed are ignored.
    pub fn of(all: &BTreeMap<String, Quantity>) -> Self {
        let extended = all.iter().filter(|(name, _)| name.contains('/'));
        Self(
            extended
                .filter_map(|(name, amount)| Some((Interned::from(name), quantity::count(&amount.0).ok()?)))
                .collect(),
        )
    }

    /// Returns zero if the resource is not listed.
    pub fn amount(&self, name: &str) -> u32 {
        self.0.iter().find(|(known, _)| known == name).map_or(0, |(_, amount)| *amount)
    }

    /// Returns by how much these amounts exceed others, without zeros.
    pub fn without(&self, others: &Self) -> Self {
        let more = |(name, amount): &(Interned, u32)| (name.clone(), amount.saturating_sub(others.amount(name)));
        self.0.iter().map(more).filter(|(_, amount)| *amount > 0).collect()
    }

    /// Returns the total of GPUs and parts of GPUs, by the names that NVIDIA's device plugin uses.
    pub fn total(&self) -> u32 {
        self.0.iter().filter(|(name, _)| is_gpu(name)).fold(0, |sum, (_, amount)| sum.saturating_add(*amount))
    }

    /// Returns the first of NVIDIA's GPU resources with an amount above zero.
    pub fn first_gpu(&self) -> Option<&Interned> {
        self.0.iter().find(|(name, amount)| is_gpu(name) && *amount > 0).map(|(name, _)| name)
    }

    pub fn names(&self) -> impl Iterator<Item = &Interned> {
        self.0.iter().map(|(name, _)| name)
    }

    /// Returns the same names with amount zero, as kubelet reports the resources of a removed plugin.
    pub fn withdrawn(&self) -> Self {
        self.0.iter().map(|(name, _)| (name.clone(), 0)).collect()
    }
}

impl<W: Into<Interned>> FromIterator<(W, u32)> for Resources {
    fn from_iter<I: IntoIterator<Item = (W, u32)>>(amounts: I) -> Self {
        Self(amounts.into_iter().map(|(name, amount)| (name.into(), amount)).collect())
    }
}

/// A number of whole GPUs.
impl From<u32> for Resources {
    fn from(gpus: u32) -> Self {
        Self::from_iter([(keys::GPU_RESOURCE, gpus)])
    }
}

/// Whether a resource is a GPU or a part of one, and not another resource with NVIDIA's prefix.
pub fn is_gpu(name: &str) -> bool {
    name.strip_prefix(keys::RESOURCES)
        .is_some_and(|name| name == "gpu" || name == "gpu.shared" || name.starts_with("mig-"))
}

/// The layout in which a device plugin offers a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ResourceLayout {
    /// The resource name for whole GPUs, if it differs from NVIDIA's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The number of pods that share a GPU or MIG device.
    pub replicas: u32,
    /// Whether shared devices have their own resource name.
    pub renamed: bool,
    /// Whether the pods share the device by MPS instead of time-slicing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mps: bool,
    /// Determines the resource names of MIG devices.
    pub mig: MigStrategy,
    /// Whether a DRA driver publishes the GPUs, instead of a device plugin.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_claims: bool,
}

impl Default for ResourceLayout {
    fn default() -> Self {
        Self { resource: None, replicas: 1, renamed: false, mps: false, mig: MigStrategy::None, by_claims: false }
    }
}

impl ResourceLayout {
    pub fn by_claims() -> Self {
        Self { by_claims: true, ..Self::default() }
    }

    pub fn of(plugin: &DevicePlugin) -> Self {
        let slicing = plugin.sharing.time_slicing.as_ref();
        let slicing = slicing.map(|slicing| (slicing.replicas, slicing.rename_by_default));
        let mps = plugin.sharing.mps.as_ref().map(|mps| (mps.replicas, mps.rename_by_default));
        let by_mps = slicing.is_none() && mps.is_some();
        let (replicas, renamed) = slicing.or(mps).unwrap_or((1, None));
        let mig = plugin.mig.as_ref().and_then(|mig| mig.strategy).unwrap_or_default();
        let resource = plugin.external.resource_name.clone().filter(|name| name != keys::GPU_RESOURCE);
        Self { resource, replicas, renamed: renamed.unwrap_or_default(), mps: by_mps, mig, by_claims: false }
    }

    /// Reads the layout from a plugin's pod: its environment, and its configuration file, which an init container has as arguments.
    pub fn of_pod(pod: &PodSpec) -> Self {
        let writer = pod.init_containers.iter().flatten().find(|init| init.name == CONFIG_WRITER);
        let file =
            writer.and_then(|writer| writer.args.as_ref()?.get(2)).and_then(|text| serde_json::from_str(text).ok());
        let file: Value = file.unwrap_or_default();
        let mps = file.pointer("/sharing/mps");
        let sharing = mps.or_else(|| file.pointer("/sharing/timeSlicing"));
        let replicas = sharing.and_then(|sharing| sharing.pointer("/resources/0/replicas"));
        let replicas = replicas.or_else(|| file.pointer("/GPUSharingConfig/MaxSharedClientsPerGPU"));
        let variables = pod.containers.iter().flat_map(|container| container.env.iter().flatten());
        let strategy = variables.filter(|env| env.name == "MIG_STRATEGY").find_map(|env| env.value.as_deref());
        let of_strategy = |mig: &MigStrategy| strategy == Some(mig.as_str());
        Self {
            resource: None,
            replicas: replicas.and_then(Value::as_u64).and_then(|replicas| replicas.try_into().ok()).unwrap_or(1),
            renamed: sharing.and_then(|sharing| sharing["renameByDefault"].as_bool()).unwrap_or_default(),
            mps: mps.is_some(),
            mig: [MigStrategy::Single, MigStrategy::Mixed].into_iter().find(of_strategy).unwrap_or_default(),
            by_claims: pod.containers.iter().any(|container| container.name == DRA_DRIVER),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_and_parts_of_gpus_are_counted_among_a_nodes_resources() {
        let all = [
            ("cpu", "8"),
            ("hugepages-2Mi", "0"),
            ("nvidia.com/gpu", "0"),
            ("nvidia.com/gpu.shared", "1k"),
            ("nvidia.com/mig-1g.10gb", "7"),
            ("nvidia.com/mig-1g.20gb", "seven"),
            ("nvidia.com/hostdev", "4"),
            ("example.com/gpu", "1"),
        ];
        let all = all.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).into();
        let read = Resources::of(&all);
        assert_eq!(
            read,
            Resources::from_iter([
                ("example.com/gpu", 1),
                ("nvidia.com/gpu", 0),
                ("nvidia.com/gpu.shared", 1000),
                ("nvidia.com/hostdev", 4),
                ("nvidia.com/mig-1g.10gb", 7)
            ])
        );
        assert_eq!(read.first_gpu().map(Interned::as_str), Some("nvidia.com/gpu.shared"));
        assert_eq!(
            (read.total(), read.amount("nvidia.com/gpu.shared"), read.amount("nvidia.com/mig-2g")),
            (1007, 1000, 0)
        );
    }

    #[test]
    fn the_excess_over_other_amounts_is_returned_by_name() {
        let amounts = |amounts: &[(&'static str, u32)]| amounts.iter().copied().collect::<Resources>();
        let capacity = amounts(&[("nvidia.com/gpu", 8), ("nvidia.com/mig-1g.5gb", 2), ("example.com/nic", 1)]);
        let allocatable = amounts(&[("nvidia.com/gpu", 7), ("nvidia.com/mig-1g.5gb", 3), ("example.com/nic", 1)]);
        assert_eq!(capacity.without(&allocatable), Resources::from(1));
    }

    #[test]
    fn an_offer_distinguishes_time_slicing_from_mps() {
        for (plugin, replicas, mps) in [
            ("{}", 1, false),
            ("{sharing: {timeSlicing: {replicas: 4}}}", 4, false),
            ("{sharing: {mps: {replicas: 3}}}", 3, true),
        ] {
            let offer = ResourceLayout::of(&serde_yaml::from_str(plugin).unwrap());
            assert_eq!((offer.replicas, offer.mps), (replicas, mps), "{plugin}");
        }
    }
}
