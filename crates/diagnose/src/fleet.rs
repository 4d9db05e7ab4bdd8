//! The fleet from a pod's point of view: what each GPU node offers or is about to offer.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNode, GpuNodeStatus, keys,
    policy::{Pool, Toolkit},
    reason::Reason,
    report::{DriverFacts, Report},
};
use gpu_operator_plan::{
    desired::toolkit::{self, OnHost, ToolkitChoice},
    inventory::records,
    pool_settings::PoolSettings,
    world::{NodeFacts, Placement, World, is_gpu},
};

pub struct Fleet<'w> {
    pub hosts: BTreeMap<&'w str, Host<'w>>,
    /// Label keys with the model's name: the operator's own key and the keys in policies.
    pub model_keys: BTreeSet<&'w str>,
}

pub struct Host<'w> {
    pub node: &'w NodeFacts,
    gpu_node: Option<&'w GpuNode>,
    policy: Option<&'w ClusterGpuPolicy>,
    pool: Option<&'w Pool>,
    /// Its GpuNode exists but cannot be parsed: it may have any GPUs.
    unread: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// It can never run the pod.
    Never,
    /// It may be able to run the pod once it is ready.
    Later,
    /// It offers as much as the pod requests, in use or not.
    Now,
}

impl<'w> Fleet<'w> {
    pub fn of(world: &'w World) -> Self {
        let hosts = world.nodes.values().filter_map(|node| {
            let gpu_node = records::gpu_node_of(world, node);
            let offers = node.allocatable.total() > 0;
            let unread = world.unreadable_gpu_nodes.contains(&node.name);
            (gpu_node.is_some() || offers || unread).then(|| {
                let spec = gpu_node.map(|gpu_node| &gpu_node.spec);
                let policy = spec.and_then(|spec| Some(&**world.policies.get(spec.policy.as_ref()?)?));
                let named = spec.and_then(|spec| spec.pool.as_ref()).zip(policy);
                let pool = named.and_then(|(name, policy)| policy.spec.pools.iter().find(|pool| pool.name == *name));
                (node.name.as_str(), Host { node, gpu_node, policy, pool, unread })
            })
        });
        let of_policy = world
            .policies
            .values()
            .flat_map(|policy| policy.spec.labels_of(&policy.spec.pools).map(|label| label.key.as_str()));
        let hosts = hosts.filter(|(_, host)| !host.has_none());
        Self { hosts: hosts.collect(), model_keys: [keys::MODEL].into_iter().chain(of_policy).collect() }
    }

    /// Returns the nodes that a pod's node selector and affinity match.
    pub fn meant<'f>(&'f self, placement: &'f Placement) -> impl Iterator<Item = &'f Host<'w>> {
        self.hosts.values().filter(|host| placement.means(&host.node.name, |key| host.label(key)))
    }
}

impl<'w> Host<'w> {
    /// Returns a label of the node, or the value that its policy is about to set.
    pub fn label(&self, key: &str) -> Option<&'w str> {
        self.node.labels.get(key).map(Interned::as_str).or_else(|| self.pending_label(key))
    }

    fn pending_label(&self, key: &str) -> Option<&'w str> {
        let model = self.status().and_then(|status| status.model.as_deref());
        if key == keys::MODEL {
            return model;
        }
        let label = self.policy?.spec.labels_of(self.pool).find(|label| label.key == key)?;
        label.value.as_deref().or(model)
    }

    /// Returns whether the probe found no GPU, none is expected and none is offered.
    fn has_none(&self) -> bool {
        let expects_none = self.status().is_some_and(|status| status.gpus.expected.is_none());
        let found_none = self.last_report().is_some_and(|report| report.gpus.is_empty());
        self.resources().next().is_none() && expects_none && found_none
    }

    pub fn is_known(&self) -> bool {
        !self.unread && self.label(keys::MODEL).is_some()
    }

    pub fn status(&self) -> Option<&'w GpuNodeStatus> {
        self.gpu_node?.status.as_ref()
    }

    /// Returns the probe's last report of any boot, which shows the node's GPUs.
    fn last_report(&self) -> Option<&'w Report> {
        records::last_report(self.gpu_node)
    }

    /// Returns the facts that the probe reports about the driver, if the report is of the node's current boot.
    pub fn driver(&self) -> Option<&'w DriverFacts> {
        Some(&records::current_report(self.node, self.gpu_node)?.driver)
    }

    /// Returns whether all of its GPUs are consumer cards, which NVIDIA's forward compatibility does not cover.
    pub fn has_consumer_gpus_only(&self) -> bool {
        let gpus = self.last_report().map(|report| report.gpus.as_slice());
        let consumer = |product: &str| product.contains("GeForce") || product.contains("TITAN");
        gpus.is_some_and(|gpus| !gpus.is_empty() && gpus.iter().all(|gpu| gpu.product.as_deref().is_some_and(consumer)))
    }

    /// Returns the RuntimeClass that a pod must name: that of NVIDIA's runtime, if a toolkit injects GPUs through that
    /// runtime and it is not the default.
    pub fn class_to_name(&self) -> Option<String> {
        let of_host = self.status().and_then(|status| status.host_runtime.clone());
        let choice = if let Some(runtime) = of_host {
            ToolkitChoice::Host(runtime)
        } else {
            // The label reflects the choice for the current policy and node, unless one of them has just changed.
            self.node.labels.get(keys::TOOLKIT).filter(|revision| !revision.is_empty())?;
            let disables_cdi = self.status().is_some_and(|status| status.cdi_disabled);
            toolkit::choose(self.toolkit()?, self.node, OnHost { disables_cdi, ..OnHost::default() }).ok()?
        };
        choice.class_to_name().map(str::to_owned)
    }

    /// Returns whether the policy requires that NVIDIA's runtime is not the default.
    pub fn keeps_default_runtime(&self) -> bool {
        self.toolkit().is_some_and(|toolkit| toolkit.set_as_default == Some(false))
    }

    fn toolkit(&self) -> Option<&'w Toolkit> {
        Some(PoolSettings::of(self.policy?, self.pool).toolkit)
    }

    pub fn resources(&self) -> impl Iterator<Item = &'w str> {
        let plugin = self.policy.map(|policy| PoolSettings::of(policy, self.pool).device_plugin);
        let own_name = plugin.and_then(|plugin| plugin.external.resource_name.as_deref());
        let has_gpus = move |name: &Interned| is_gpu(name) || own_name == Some(name.as_str());
        let offered = self.node.allocatable.names().filter(|name| self.node.allocatable.amount(name) > 0);
        let by_claims = (self.by_claims() > 0).then_some(keys::GPU_RESOURCE);
        offered.filter(move |name| has_gpus(name)).map(Interned::as_str).chain(by_claims)
    }

    pub fn offers(&self, resource: &str) -> u64 {
        let by_claims = if resource == keys::GPU_RESOURCE { self.by_claims() } else { 0 };
        (self.node.allocatable.amount(resource) + by_claims).into()
    }

    /// Returns how many GPUs the DRA driver of this operator publishes, which pods can also request as a resource.
    fn by_claims(&self) -> u32 {
        self.status().map_or(0, |status| records::by_claims(&status.gpus))
    }

    /// Returns how much of a resource the node will offer at most, or `None` if that is unknown.
    pub fn may_offer(&self, resource: &str) -> Option<u64> {
        let now = self.offers(resource);
        match self.status() {
            Some(status) if status.is_ready() || status.reason().is_some_and(Reason::counts_apart) => Some(now),
            // A third-party plugin, and no GpuNode: only the current amount is known.
            None => (self.gpu_node.is_none() && !self.unread).then_some(now),
            Some(status) if resource == keys::GPU_RESOURCE => Some(now.max(status.gpus.expected?.into())),
            Some(_) => None,
        }
    }

    pub fn room(&self, requests: &BTreeMap<&str, u64>) -> Room {
        let room = |(resource, count): (&&str, &u64)| {
            if self.offers(resource) >= *count {
                Room::Now
            } else if self.may_offer(resource).is_none_or(|most| most >= *count) {
                Room::Later
            } else {
                Room::Never
            }
        };
        requests.iter().map(room).min().unwrap_or(Room::Now)
    }
}
