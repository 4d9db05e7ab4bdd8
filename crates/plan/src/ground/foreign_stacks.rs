//! The third-party GPU stacks that count. A user of one namespace must not be able to stop this operator on the cluster's nodes, so
//! names and labels prove nothing outside `kube-system`. The proof is a pod with access to the host: a privileged container with a
//! directory of the host or, for device plugins and DRA drivers, a mount of kubelet's sockets. Pod Security rejects both in tenants'
//! namespaces. The pod need not run: it will once its image is pulled.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use gpu_operator_crd::{NodeName, policy::Stage};

use crate::world::{ForeignPart, ForeignPod, ForeignSet, GpuSlice, NodeFacts, World};

/// The namespace whose objects are trusted: only administrators of the cluster may create any there.
const TRUSTED: &str = "kube-system";

#[derive(Debug)]
pub struct ForeignStacks<'w> {
    pub world: &'w World,
    sets: BTreeMap<&'w str, &'w ForeignSet>,
    /// The slices of the nodes whose GPUs a DRA driver allocates.
    slices: BTreeMap<&'w NodeName, Vec<&'w Arc<GpuSlice>>>,
}

impl<'w> ForeignStacks<'w> {
    /// `own` is this operator's namespace.
    pub fn of(world: &'w World, own: &str) -> Self {
        // A pod on one node is evidence for all nodes of its DaemonSet: on a new node its next pod may not be there yet.
        let mut proven: HashMap<(&str, &str), bool> = HashMap::new();
        for pod in world.foreign_pods.values() {
            if let Some(set) = &pod.set {
                *proven.entry((&pod.namespace, set)).or_default() |= pod.is_privileged;
            }
        }
        // While the pods of a DaemonSet are recreated, it counts where it has been found before.
        let statuses = world.gpu_nodes.values().filter_map(|gpu_node| gpu_node.status.as_ref());
        for key in statuses.flat_map(|status| status.foreign.values()).filter_map(|set| set.split_once('/')) {
            proven.insert(key, true);
        }
        let counts = |key: &str, set: &ForeignSet| {
            let (namespace, name) = key.split_once('/').unwrap_or_default();
            let is_own = set.is_labelled && namespace == own;
            let is_proven = proven.get(&(namespace, name)).is_some_and(|is_privileged| match set.part {
                ForeignPart::Stage(Stage::DevicePlugin) | ForeignPart::Dra => true,
                ForeignPart::Stage(_) => *is_privileged,
            });
            !is_own && (namespace == TRUSTED || is_proven)
        };
        let sets = world.foreign_sets.iter().filter(|(key, set)| counts(key, set));
        let mut slices: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for slice in world.gpu_slices.values() {
            slices.entry(&slice.node).or_default().push(slice);
        }
        Self { world, slices, sets: sets.map(|(key, set)| (key.as_str(), set.as_ref())).collect() }
    }

    pub fn sets(&self) -> impl Iterator<Item = (&'w str, &'w ForeignSet)> {
        self.sets.iter().map(|(key, set)| (*key, *set))
    }

    /// Returns the first driver pod on a node that belongs to no DaemonSet.
    pub fn driver_pod(&self, node: &NodeName) -> Option<&'w ForeignPod> {
        self.pods_on(node).map(Arc::as_ref).find(|pod| pod.set.is_none())
    }

    /// Returns a driver pod that is still on a node although no DaemonSet of a driver reaches the node any more. Until it has ended, the
    /// driver is its own.
    pub fn ending_driver_pod(&self, node: &NodeFacts) -> Option<&'w ForeignPod> {
        let stays = |pod: &ForeignPod| {
            let set = format!("{}/{}", pod.namespace, pod.set.as_deref().unwrap_or_default());
            self.sets.get(set.as_str()).is_some_and(|set| set.reaches(node))
        };
        self.pods_on(&node.name).map(Arc::as_ref).find(|pod| pod.is_driver && pod.set.is_some() && !stays(pod))
    }

    /// Returns the slices of a node's GPUs, if a DRA driver allocates them.
    pub fn slices_of(&self, node: &NodeName) -> &[&'w Arc<GpuSlice>] {
        self.slices.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether a DRA driver allocates a node's GPUs.
    pub fn has_slices(&self, node: &NodeName) -> bool {
        self.slices.contains_key(node)
    }

    /// Returns the DaemonSets with a device plugin on a node, of GPUs or of anything else, as `namespace/name`.
    pub fn device_plugins(&self, node: &NodeName) -> BTreeSet<String> {
        let plugins = self.pods_on(node).filter(|pod| pod.is_device_plugin);
        plugins.filter_map(|pod| Some(format!("{}/{}", pod.namespace, pod.set.as_ref()?))).collect()
    }

    /// Returns the third-party pods on a node that are evidence of a GPU stack.
    pub fn pods_on(&self, node: &NodeName) -> impl Iterator<Item = &'w Arc<ForeignPod>> + use<'w> {
        // Most clusters have none.
        let is_any = !self.world.foreign_pods.is_empty();
        let prefix = if is_any { ForeignPod::prefix(node) } else { String::new() };
        let from = self.world.foreign_pods.range(prefix.clone()..);
        from.take_while(move |(key, _)| key.starts_with(&prefix)).map(|(_, pod)| pod)
    }
}
