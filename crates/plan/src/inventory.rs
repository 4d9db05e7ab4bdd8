//! The inventory: every node with its GPUs and the policy that governs it.

pub mod added_models;
pub mod external_stack;
pub mod gpus;
pub mod groups;
pub mod label_hints;
pub mod membership;
pub mod node_labels;
pub mod pool_checks;
pub mod pools;
pub mod published_keys;
pub mod report;
pub mod unreadable;

use std::collections::HashMap;

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, NodeName, PolicyName, Report, gpunode::StageRevisions};
use gpus::Discovery;
use membership::{Unmanaged, by_precedence, governs, name_of, opted_out};

use crate::{
    catalogue::Catalogue,
    world::{NodeFacts, PodFacts, World},
};

/// The nodes whose state is known well enough to be planned for, sorted by name.
#[derive(Debug)]
pub struct Inventory<'w> {
    /// What was observed.
    pub world: &'w World,
    /// The catalogue, with the models that policies add.
    pub catalogue: &'w Catalogue,
    /// Nodes that a policy governs.
    pub governed: Vec<GovernedNode<'w>>,
    /// Nodes that no policy governs.
    pub unmanaged: Vec<UnmanagedNode<'w>>,
}

/// A GPU node that a policy governs.
#[derive(Debug)]
pub struct GovernedNode<'w> {
    /// The Node.
    pub node: &'w NodeFacts,
    /// Its GpuNode, if it exists.
    pub gpu_node: Option<&'w GpuNode>,
    /// The probe's report, if it is of the node's current boot.
    pub report: Option<&'w Report>,
    /// The groups that it has.
    pub have: StageRevisions,
    /// This operator's pods on the node.
    pub pods: Vec<&'w PodFacts>,
    /// What is known of its GPUs.
    pub discovery: Discovery<'w>,
    /// The policy that governs the node: the first in the order of precedence that selects it.
    pub policy: &'w ClusterGpuPolicy,
    /// The names of the other policies that select it.
    pub others: Vec<PolicyName>,
}

/// A node that no policy governs.
#[derive(Debug)]
pub struct UnmanagedNode<'w> {
    /// The Node.
    pub node: &'w NodeFacts,
    /// Its GpuNode, if it exists.
    pub gpu_node: Option<&'w GpuNode>,
    /// The probe's report, if it is of the node's current boot.
    pub report: Option<&'w Report>,
    /// The groups that it still has.
    pub have: StageRevisions,
    /// This operator's remaining pods on the node.
    pub pods: Vec<&'w PodFacts>,
    /// Why no policy governs it.
    pub why: Unmanaged,
    /// The model of its GPUs, if known.
    pub model: Option<String>,
    /// The policy that would govern the node if its label did not exclude it.
    pub selected_by: Option<&'w ClusterGpuPolicy>,
}

/// Returns the inventory of the fleet. Nodes with objects that cannot be parsed are left out, and so left unchanged.
#[must_use]
pub fn take<'w>(catalogue: &'w Catalogue, world: &'w World) -> Inventory<'w> {
    let policies = by_precedence(world);
    let mut pods = pods_by_node(world);
    let mut inventory = Inventory { world, catalogue, governed: Vec::new(), unmanaged: Vec::new() };
    for (name, node) in world.nodes.iter().filter(|(name, _)| !world.is_unreadable(name)) {
        let gpu_node = report::gpu_node_of(world, node);
        let report = report::current(node, gpu_node);
        let pods = pods.remove(name).unwrap_or_default();
        let have = groups::of(world, node, gpu_node, &pods);
        let unmanaged = |why, model, selected_by| UnmanagedNode {
            node,
            gpu_node,
            report,
            have: have.clone(),
            pods: pods.clone(),
            why,
            model,
            selected_by,
        };
        let Some(discovery) = gpus::discover(catalogue, node, gpu_node) else {
            inventory.unmanaged.push(unmanaged(Unmanaged::NoGpu, None, None));
            continue;
        };
        let mut claims = policies.iter().copied().filter(|policy| governs(policy, node));
        match claims.next() {
            selected_by if opted_out(node) => {
                inventory.unmanaged.push(unmanaged(Unmanaged::OptedOut, discovery.model, selected_by));
            }
            None => inventory.unmanaged.push(unmanaged(Unmanaged::NoPolicy, discovery.model, None)),
            Some(policy) => {
                let others = claims.map(name_of).collect();
                let governed = GovernedNode { node, gpu_node, report, have, pods, discovery, policy, others };
                inventory.governed.push(governed);
            }
        }
    }
    inventory
}

/// Returns the pods of this operator by node.
fn pods_by_node(world: &World) -> HashMap<&NodeName, Vec<&PodFacts>> {
    let mut by_node: HashMap<&NodeName, Vec<&PodFacts>> = HashMap::new();
    for pod in world.pods.values() {
        by_node.entry(&pod.node).or_default().push(pod);
    }
    by_node
}
