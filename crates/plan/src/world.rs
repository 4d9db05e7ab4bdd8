//! The observed world: what the plan reads, and nothing else. Pure functions extract facts from API objects, so that an event
//! that changes no fact, such as a heartbeat, does not wake the reconcile loop.

mod daemon_set;
mod foreign;
mod foreign_pod;
mod gpu_pods;
mod gpu_slice;
mod node;
mod observed_time;
mod obstacles;
mod partial;
mod placement;
mod pod;
mod pods;
mod resources;
mod taint;

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_common::{copy_on_write::CopyOnWrite, mirror::Facts};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, NodeName, PolicyName, keys, policy::Allocation};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::ResourceExt;

pub use daemon_set::{DaemonSetFacts, Refusal};
pub use foreign::{ForeignOwner, ForeignPart, ForeignSet};
pub use foreign_pod::{ForeignPod, TrimmedPod};
pub use gpu_pods::{Bystander, GpuPod, GpuPods, GpuRequests, PodOwner, serves_gpus, uses_gpu, without_details};
pub use gpu_slice::{GpuSlice, PublishedGpus, ResourceSlice, SliceGpu};
pub use node::{NodeFacts, NodeLabels, TrimmedNode};
pub use node::{OwnCondition, OwnConditions};
pub use observed_time::ObservedTime;
pub use obstacles::CoWriters;
pub use obstacles::{Concern, HeldWrite};
pub use partial::Partial;
pub use placement::Placement;
pub use pod::{ContainerFacts, ContainerState, Deletion, Exit, PodEnd, PodFacts, Role};
pub use pods::Pods;
pub use resources::{ResourceLayout, Resources, is_gpu};
pub use taint::{Lift, OwnTaint, TaintFact, TaintWrite};

/// DaemonSets of this operator, by name.
pub type DaemonSets = Facts<DaemonSetFacts>;

/// The ends of the logs of validation pods, or why they cannot be read, by pod.
pub type LogTails = BTreeMap<String, Result<String, String>>;

/// Everything the plan knows about the cluster. Keys that are strings are names of objects. What mirrors hand over is not copied for a
/// pass; see [`CopyOnWrite`].
#[derive(Clone, Debug, Default)]
pub struct World {
    pub policies: Facts<ClusterGpuPolicy, PolicyName>,
    /// All nodes, with or without GPUs.
    pub nodes: Facts<NodeFacts, NodeName>,
    pub gpu_nodes: Facts<GpuNode, NodeName>,
    /// The DaemonSets of this operator.
    pub daemon_sets: DaemonSets,
    /// DaemonSets that claim to be part of a third-party GPU stack, by namespace and name.
    pub foreign_sets: Facts<ForeignSet>,
    /// Third-party pods that are evidence of a GPU stack on their node, by node, namespace and name.
    pub foreign_pods: Facts<ForeignPod>,
    /// The slices of GPUs that DRA drivers allocate, by name.
    pub gpu_slices: Facts<GpuSlice>,
    /// Pods of this operator's DaemonSets and of the probe, and validation pods.
    pub pods: CopyOnWrite<Pods>,
    /// The API server's last rejection of a DaemonSet's pods, by DaemonSet, and kubelet's of a pod's volumes, by pod.
    pub refusals: Facts<Refusal>,
    pub runtime_classes: Facts<RuntimeClassFacts>,
    /// Answers to [`crate::output::write::Questions::gpu_pods`]. If a node is not a key, its pods have not been queried.
    pub gpu_pods: BTreeMap<NodeName, GpuPods>,
    /// Nodes whose pods are queried even if their probes report pods that have GPUs.
    pub unconfirmed: BTreeSet<NodeName>,
    /// Why the API server does not evict pods, `namespace/name`, if it was asked to.
    pub refused_evictions: BTreeMap<String, String>,
    /// Why the API server has not created pods of this operator that belong to no DaemonSet.
    pub refused_pods: BTreeMap<String, String>,
    /// Pods, `namespace/name`, that the API server would evict, with their UIDs.
    pub allowed_evictions: BTreeMap<String, String>,
    /// Answers to [`crate::output::write::Questions::log_tails`].
    pub log_tails: LogTails,
    /// Writes that have no lasting effect, without the reverted ones of [`Self::contested_nodes`].
    pub held_writes: Vec<HeldWrite>,
    /// The fields of a node that other managers keep changing, as messages.
    pub contested_nodes: BTreeMap<NodeName, String>,
    /// Policies that exist but cannot be parsed. The nodes that they govern are left unchanged.
    pub unreadable_policies: BTreeSet<PolicyName>,
    /// GpuNodes that exist but cannot be parsed. Their nodes are left unchanged.
    pub unreadable_gpu_nodes: BTreeSet<NodeName>,
}

impl World {
    /// Whether a node's GpuNode or policy exists but cannot be parsed.
    pub fn is_unreadable(&self, node: &NodeName) -> bool {
        if self.unreadable_gpu_nodes.is_empty() && self.unreadable_policies.is_empty() {
            return false;
        }
        let gpu_node = self.gpu_nodes.get(node);
        let policy = gpu_node.and_then(|gpu_node| gpu_node.spec.policy.as_ref());
        self.unreadable_gpu_nodes.contains(node)
            || policy.is_some_and(|policy| self.unreadable_policies.contains(policy))
    }

    /// Returns a DaemonSet, `namespace/name`, of another installation of this operator than that in the namespace `own`.
    pub fn other_installation(&self, own: &str) -> Option<&str> {
        let sets = self.foreign_sets.iter().filter(|(_, set)| set.is_of_an_installation());
        sets.map(|(key, _)| key.as_str()).find(|key| key.split('/').next() != Some(own))
    }

    /// Returns how pods request GPUs in this cluster.
    pub fn gpu_requests(&self) -> GpuRequests {
        let plugins = self.policies.values().flat_map(|policy| {
            let of_pools = policy.spec.pools.iter().filter_map(|pool| pool.device_plugin.as_ref());
            of_pools.chain([&policy.spec.defaults.device_plugin])
        });
        let named = plugins.filter_map(|plugin| plugin.external.resource_name.clone());
        // Pods outlive the policy and the DRA driver by which they got their GPUs.
        let statuses = || self.gpu_nodes.values().filter_map(|gpu_node| gpu_node.status.as_ref());
        let resources = named.chain(statuses().flat_map(|status| status.past_resource_names.clone())).collect();
        // While a node's driver is updated, its slices are gone.
        let pools = self.policies.values().flat_map(|policy| policy.spec.allocations());
        let claims = !self.gpu_slices.is_empty()
            || pools.into_iter().any(Allocation::is_by_claims)
            || statuses().any(|status| status.gpus.by_claims)
            || self.foreign_sets.values().any(|set| set.part == ForeignPart::Dra)
            || statuses().any(|status| status.foreign.contains_key(keys::DRA_DRIVER));
        GpuRequests { resources, claims }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeClassFacts {
    pub managed: bool,
    pub policies: BTreeSet<PolicyName>,
    /// Whether an object owns it, with which the API server would delete it.
    pub owned: bool,
}

impl RuntimeClassFacts {
    pub fn of(class: &RuntimeClass) -> Self {
        Self {
            // Only this operator's own key is conclusive: NVIDIA's operator has the same name.
            managed: class.annotations().contains_key(keys::APPLIED),
            policies: class.annotations().get(keys::POLICIES).map(|names| listed(names)).unwrap_or_default(),
            owned: !class.owner_references().is_empty(),
        }
    }
}

fn listed(names: &str) -> BTreeSet<PolicyName> {
    names.split(',').filter(|name| !name.is_empty()).map(PolicyName::from).collect()
}
