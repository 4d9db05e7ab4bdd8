//! The observed world: what the plan reads, and nothing else. Facts are taken out of API objects here, by pure
//! functions, so that an event which changes none of them (a heartbeat, say) wakes nobody.

mod daemon_set;
mod foreign;
mod foreign_pod;
mod node;
mod pod;
mod resources;
mod word;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::ResourceExt;

pub use daemon_set::{DaemonSetFacts, Refusal};
pub use foreign::{ForeignOwner, ForeignPart, ForeignSet};
pub use foreign_pod::{ForeignPod, TrimmedPod};
pub use node::{HealthCondition, NodeFacts, NodeLabels, TaintFact, TrimmedNode};
pub use pod::{ContainerFacts, ContainerState, Exit, GpuAsks, PodEnd, PodFacts, Role, runs_a_container, uses_gpu};
pub use resources::{Offer, Resources, is_gpu};
pub use word::{Word, Words};

/// What tests have said at the end of their logs, or why that cannot be had, by pod.
pub type LastWords = BTreeMap<String, Result<String, String>>;

/// Everything the plan knows of the cluster. Keys are object names.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// All policies.
    pub policies: BTreeMap<String, Arc<ClusterGpuPolicy>>,
    /// All nodes, GPU or not.
    pub nodes: BTreeMap<String, Arc<NodeFacts>>,
    /// All GpuNodes.
    pub gpu_nodes: BTreeMap<String, Arc<GpuNode>>,
    /// Our DaemonSets.
    pub daemon_sets: BTreeMap<String, Arc<DaemonSetFacts>>,
    /// Other people's DaemonSets that serve nodes with a part of a GPU stack, by namespace and name.
    pub foreign_sets: BTreeMap<String, Arc<ForeignSet>>,
    /// Third parties' pods that install a driver and that no DaemonSet stands for, by node, namespace and name.
    pub foreign_pods: BTreeMap<String, Arc<ForeignPod>>,
    /// Pods of our DaemonSets and of the probe's, and those that validate nodes.
    pub pods: BTreeMap<String, Arc<PodFacts>>,
    /// What the API server said last when it refused a DaemonSet's pods, by DaemonSet.
    pub refusals: BTreeMap<String, Arc<Refusal>>,
    /// RuntimeClasses, anybody's.
    pub runtime_classes: BTreeMap<String, Arc<RuntimeClassFacts>>,
    /// Answers to [`crate::output::queries::Questions::gpu_pods`]: pods that use a GPU, `namespace/name`, by node. A node that is
    /// not a key has not been asked about.
    pub gpu_pods: BTreeMap<String, Vec<String>>,
    /// Those of them that run a container, by node: only they can have the driver open.
    pub gpu_holders: BTreeMap<String, Vec<String>>,
    /// Answers to [`crate::output::queries::Questions::last_words`]: the end of the log of a test, or why it cannot be had, by pod.
    pub last_words: LastWords,
    /// DaemonSets whose repair changed nothing, by the generation that it found: something else mends them back at once.
    pub futile_repairs: BTreeMap<String, i64>,
    /// What the API server said to writes of ours that it refused in the last pass.
    pub refused_writes: Vec<String>,
    /// Policies that are there but cannot be read: of another version of the API. What they govern stays as it is.
    pub unreadable_policies: BTreeSet<String>,
    /// GpuNodes that are there but cannot be read. Their nodes stay as they are.
    pub unreadable_gpu_nodes: BTreeSet<String>,
}

impl World {
    /// Returns whether what governs a node, or what is known of it, is there but cannot be read: then it stays as it is.
    #[must_use]
    pub fn is_unreadable(&self, node: &str) -> bool {
        let gpu_node = self.gpu_nodes.get(node);
        let policy = gpu_node.and_then(|gpu_node| gpu_node.spec.policy.as_ref());
        self.unreadable_gpu_nodes.contains(node)
            || policy.is_some_and(|policy| self.unreadable_policies.contains(policy))
    }

    /// By what pods ask for GPUs here: the names that policies give, and claims where somebody's DRA driver is.
    #[must_use]
    pub fn gpu_asks(&self) -> GpuAsks {
        let plugins = self.policies.values().flat_map(|policy| {
            let of_pools = policy.spec.pools.iter().map(|pool| &pool.device_plugin);
            of_pools.chain([&policy.spec.defaults.device_plugin])
        });
        let resources = plugins.filter_map(|plugin| plugin.resource_name.clone()).collect();
        // Pods outlive the driver that has given them their GPUs.
        let remembered = |gpu_node: &Arc<GpuNode>| {
            gpu_node.status.as_ref().is_some_and(|status| status.foreign.contains_key(keys::DRA_DRIVER))
        };
        let claims = self.foreign_sets.values().any(|set| set.part == ForeignPart::Dra)
            || self.gpu_nodes.values().any(remembered);
        GpuAsks { resources, claims }
    }
}

/// What the plan reads of a RuntimeClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeClassFacts {
    /// Whether the operator has made it.
    pub ours: bool,
    /// The uids of its owners.
    pub owners: BTreeSet<String>,
}

impl RuntimeClassFacts {
    /// Reads the facts of a RuntimeClass.
    #[must_use]
    pub fn of(class: &RuntimeClass) -> Self {
        Self {
            // By this operator's own key alone: NVIDIA's operator bears the same name.
            ours: class.annotations().contains_key(keys::APPLIED),
            owners: class.owner_references().iter().map(|owner| owner.uid.clone()).collect(),
        }
    }
}
