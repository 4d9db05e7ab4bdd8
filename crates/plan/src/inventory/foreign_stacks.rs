//! The third-party GPU stacks that count. A user of one namespace must not be able to stop this operator on the nodes of the
//! cluster, so the name and the labels of a DaemonSet prove nothing, except in `kube-system`. The proof is a pod with access to the
//! host: a privileged container that mounts a directory of the host, or, for device plugins and DRA drivers, a mount of kubelet's
//! sockets. Pod Security rejects both in namespaces of tenants. The pod need not run yet: it will once its image is pulled.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use gpu_operator_crd::{NodeName, policy::Stage};

use crate::world::{ForeignPart, ForeignPod, ForeignSet, World};

/// The namespace whose objects are trusted: only administrators of the cluster may create any there.
const TRUSTED: &str = "kube-system";

/// The third-party GPU stacks for which there is evidence.
#[derive(Debug)]
pub struct ForeignStacks<'w> {
    sets: BTreeMap<&'w str, &'w ForeignSet>,
    pods: &'w BTreeMap<String, Arc<ForeignPod>>,
}

impl<'w> ForeignStacks<'w> {
    /// Returns the stacks of a cluster in which this operator has the namespace `own`.
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
        Self { sets: sets.map(|(key, set)| (key.as_str(), set.as_ref())).collect(), pods: &world.foreign_pods }
    }

    /// Returns the DaemonSets, by namespace and name.
    pub fn sets(&self) -> impl Iterator<Item = (&'w str, &'w ForeignSet)> {
        self.sets.iter().map(|(key, set)| (*key, *set))
    }

    /// Returns the first pod on a node that installs a driver and belongs to no DaemonSet.
    pub fn driver_pod(&self, node: &NodeName) -> Option<&'w ForeignPod> {
        let prefix = ForeignPod::prefix(node);
        let of_node = self.pods.range(prefix.clone()..).take_while(move |(key, _)| key.starts_with(&prefix));
        of_node.map(|(_, pod)| pod.as_ref()).find(|pod| pod.set.is_none())
    }
}
