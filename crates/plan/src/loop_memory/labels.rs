//! Labels that decide which policy and which pool govern a node: the keys in the selectors of both, and the labels that name a model. A
//! program that writes labels may be restarted, and a selector may have a typing error for a moment, so a node that has a GPU stack keeps
//! its labels until a change has lasted for a grace period. The edit of a policy takes effect at once.
//!
//! The labels of a node that no policy selects any more are not kept: it has a grace period that a restart of the operator does not end
//! ([`crate::rollout::leaving`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{GpuNode, NodeName, gpunode::StageRevisions, keys, policy::Selector};

use crate::{
    ground::policies::by_precedence,
    inventory::{membership::governs, node_labels},
    loop_memory::unhashed::Unhashed,
    sorted::Sorted,
    time::Uptime,
    world::{NodeFacts, World},
};

/// How long a change lasts before it counts.
const GRACE: Duration = Duration::from_mins(1);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settling {
    selectors: BTreeSet<String>,
    nodes: BTreeMap<NodeName, Settled>,
}

/// The labels of a node that decide.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Settled {
    uid: String,
    counts: Deciding,
    last: Deciding,
    /// When [`Self::last`] was first seen.
    since: Uptime,
    /// The node with these labels.
    seen: Unhashed<Option<Arc<NodeFacts>>>,
}

type Deciding = BTreeMap<Interned, Interned>;

impl Settling {
    /// Gives nodes in the grace period the labels that they had.
    pub fn annotate(&mut self, world: &mut World, now: Uptime) {
        let policies = by_precedence(world);
        let selectors = policies.iter().flat_map(|policy| {
            let of_pools = policy.spec.pools.iter().filter_map(|pool| pool.matches.node_selector.as_ref());
            of_pools.chain(&policy.spec.node_selector).flat_map(Selector::keys).cloned()
        });
        let selectors: BTreeSet<String> = selectors.collect();
        let former = std::mem::replace(&mut self.selectors, selectors);
        let are_same_selectors = former == self.selectors;
        let (known, mut gpu_nodes) = (std::mem::take(&mut self.nodes), Sorted::of(&world.gpu_nodes));
        let (mut nodes, mut kept) = (Vec::with_capacity(known.len()), Vec::new());
        let mut known = Sorted::of(known);
        for (name, node) in &world.nodes {
            let before = known.find(name);
            if !gpu_nodes.find(name).is_some_and(|gpu_node| has_stack(gpu_node)) {
                continue;
            }
            let before = match before {
                Some(settled) if are_same_selectors && settled.is_done_with(node) => {
                    nodes.push((name.clone(), settled));
                    continue;
                }
                before => before.filter(|settled| settled.uid == node.uid),
            };
            let labels = self.deciding(node);
            let mut settled = before.unwrap_or_else(|| Settled::new(node, labels.clone(), now));
            settled.seen = Unhashed(Some(Arc::clone(node)));
            settled.counts.retain(|key, _| self.decides(node, key));
            let is_new = |key: &Interned| self.selectors.contains(key.as_str()) && !former.contains(key.as_str());
            settled
                .counts
                .extend(labels.iter().filter(|(key, _)| is_new(key)).map(|(key, value)| (key.clone(), value.clone())));
            settled.see(labels, now);
            if settled.until().is_some() {
                let kept_node = settled.restored(node);
                // Between two policies or pools: without one before or now, the node has no pool to keep.
                if [&kept_node, node].iter().all(|node| policies.iter().any(|policy| governs(policy, node))) {
                    kept.push((name.clone(), kept_node));
                }
            }
            nodes.push((name.clone(), settled));
        }
        self.nodes = nodes.into_iter().collect();
        // Not `extend`, which would copy the map of nodes for no node.
        for (name, node) in kept {
            world.nodes.insert(name, Arc::new(node));
        }
    }

    pub fn next(&self) -> Option<Uptime> {
        self.nodes.values().filter_map(Settled::until).min()
    }

    fn deciding(&self, node: &NodeFacts) -> Deciding {
        let labels = node.labels.iter().filter(|(key, _)| self.decides(node, key));
        labels.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Labels of this operator, and the one that excludes a node, take effect at once.
    fn decides(&self, node: &NodeFacts, key: &str) -> bool {
        (self.selectors.contains(key) || node_labels::names_a_model(key))
            && key != keys::MANAGED
            && !keys::NODE_LABELS.contains(&key)
            && !node.owned_labels.contains(key)
    }
}

/// Others have nothing to lose: a node that joins may get its labels one after the other.
fn has_stack(gpu_node: &GpuNode) -> bool {
    gpu_node.spec.current.as_ref().is_some_and(|current| *current != StageRevisions::default())
}

impl Settled {
    fn new(node: &NodeFacts, labels: Deciding, now: Uptime) -> Self {
        Self { uid: node.uid.clone(), counts: labels.clone(), last: labels, since: now, seen: Unhashed::default() }
    }

    fn see(&mut self, labels: Deciding, now: Uptime) {
        if self.last != labels {
            (self.last, self.since) = (labels, now);
        }
        if now.saturating_sub(self.since) >= GRACE {
            self.counts.clone_from(&self.last);
        }
    }

    /// Whether nothing has changed since the labels of the node were last read.
    fn is_done_with(&self, node: &Arc<NodeFacts>) -> bool {
        self.until().is_none() && self.seen.0.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, node))
    }

    fn until(&self) -> Option<Uptime> {
        (self.counts != self.last).then(|| self.since + GRACE)
    }

    fn restored(&self, node: &NodeFacts) -> NodeFacts {
        let mut node = node.clone();
        node.labels.retain(|key, _| !self.last.contains_key(key));
        node.labels.extend(self.counts.clone());
        node
    }
}
