//! The inventory: every node with its GPUs and the policy that governs it.

pub mod external_stack;
pub mod gpus;
pub mod membership;
pub mod node_labels;
pub mod records;

use std::{ops::Deref, sync::Arc};

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, NodeName, PolicyName, Report, gpunode::StageRevisions};
use gpus::Discovery;
use k8s_openapi::jiff::Timestamp;
use membership::{GoverningPool, Unmanaged, governs, name_of, opted_out};

use crate::{
    ground::Ground,
    world::{GpuPods, NodeFacts, ObservedTime, PodFacts, Role, World},
};

/// The fleet at one step of the plan: the nodes that are known well enough to be planned for, sorted by name.
#[derive(Debug)]
pub struct Fleet<'w, N> {
    pub world: &'w World,
    pub ground: &'w Ground<'w>,
    pub governed: Vec<N>,
    pub unmanaged: Vec<UnmanagedNode<'w>>,
}

/// A node with what belongs to it. Each step of the plan wraps the node of the step before, to which it dereferences.
#[derive(Debug)]
pub struct KnownNode<'w> {
    pub node: &'w NodeFacts,
    pub gpu_node: Option<&'w GpuNode>,
    /// The probe's report, if it is of the node's current boot.
    pub report: Option<&'w Report>,
    pub have: StageRevisions,
    /// This operator's pods on the node.
    pub pods: Vec<&'w PodFacts>,
    /// The pods that use or offer its GPUs, if they were queried.
    pub gpu_pods: Option<&'w GpuPods>,
    /// Whether they are queried even if the probe reports some.
    pub is_unconfirmed: bool,
    /// The fields that other managers keep changing.
    pub contested: Option<&'w str>,
}

impl<'w> KnownNode<'w> {
    /// A terminating pod counts only if there is no other.
    pub fn probe_pod(&self) -> Option<&'w PodFacts> {
        let of_probe = self.pods.iter().copied().filter(|pod| pod.role == Role::Probe);
        of_probe.min_by_key(|pod| pod.is_leaving())
    }

    /// The node, its label and its probe all exist since then.
    pub fn probe_expected_since(&self) -> Option<Timestamp> {
        let probe = self.probe_pod().and_then(|pod| pod.created);
        [self.node.created, self.node.labelled_present, probe].into_iter().flatten().map(ObservedTime::local).max()
    }
}

#[derive(Debug)]
pub struct GovernedNode<'w> {
    known: KnownNode<'w>,
    pub discovery: Discovery<'w>,
    /// The first in the order of precedence that selects the node.
    pub policy: &'w ClusterGpuPolicy,
    pub others: Vec<PolicyName>,
    pub pool: GoverningPool<'w>,
}

#[derive(Debug)]
pub struct UnmanagedNode<'w> {
    known: KnownNode<'w>,
    /// Why no policy governs it.
    pub why: Unmanaged,
    /// The model of its GPUs, if known.
    pub model: Option<String>,
    /// The policy that would govern the node if its label did not exclude it.
    pub selected_by: Option<&'w ClusterGpuPolicy>,
}

impl<'w> Deref for GovernedNode<'w> {
    type Target = KnownNode<'w>;

    fn deref(&self) -> &KnownNode<'w> {
        &self.known
    }
}

impl<'w> Deref for UnmanagedNode<'w> {
    type Target = KnownNode<'w>;

    fn deref(&self) -> &KnownNode<'w> {
        &self.known
    }
}

/// Takes the nodes that are asked for. Nodes with objects that cannot be parsed are left out, and so left unchanged.
pub fn take<'w>(
    ground: &'w Ground<'w>,
    world: &'w World,
    is_wanted: impl Fn(&NodeName) -> bool,
) -> Fleet<'w, GovernedNode<'w>> {
    let catalogue = ground.catalogue();
    let mut fleet = Fleet { world, ground, governed: Vec::new(), unmanaged: Vec::new() };
    let nodes = world.nodes.iter().filter(|(name, _)| is_wanted(name) && !world.is_unreadable(name));
    for (name, node) in nodes {
        let gpu_node = records::gpu_node_of(world, node);
        let report = records::current_report(node, gpu_node);
        let pods: Vec<_> = world.pods.on(name).map(Arc::as_ref).collect();
        let have = records::current_revisions(ground.daemon_sets, node, gpu_node, &pods);
        let known = KnownNode {
            node,
            gpu_node,
            report,
            have,
            pods,
            gpu_pods: world.gpu_pods.get(name),
            is_unconfirmed: world.unconfirmed.contains(name),
            contested: world.contested_nodes.get(name).map(String::as_str),
        };
        let Some(discovery) = gpus::discover(catalogue, node, gpu_node) else {
            let is_unreported = gpu_node.is_some() && records::last_report(gpu_node).is_none();
            let why = if is_unreported { Unmanaged::Unreported } else { Unmanaged::NoGpu };
            fleet.unmanaged.push(UnmanagedNode { known, why, model: None, selected_by: None });
            continue;
        };
        let mut claims = ground.policies.iter().filter(|pools| governs(pools.policy, node));
        let first = claims.next();
        let selected_by = first.map(|pools| pools.policy);
        if let Some(pools) = first.filter(|_| !opted_out(node)) {
            let (policy, others) = (pools.policy, claims.map(|pools| name_of(pools.policy)).collect());
            let pool = GoverningPool::of(catalogue, pools, discovery.model.as_deref(), &node.labels);
            fleet.governed.push(GovernedNode { known, discovery, policy, others, pool });
        } else {
            let why = if opted_out(node) { Unmanaged::OptedOut } else { Unmanaged::NoPolicy };
            fleet.unmanaged.push(UnmanagedNode { known, why, model: discovery.model, selected_by });
        }
    }
    fleet
}
