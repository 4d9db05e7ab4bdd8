//! Progress of each governed node: which components it has, which of them are proven to work, and what keeps it from being
//! ready.

pub mod assessment;
pub mod broken_stage;
pub mod cuda;
pub mod driver;
pub mod driver_evidence;
pub mod error_line;
pub mod health;
pub mod holders;
pub mod host_driver;
pub mod installer_log;
pub mod member;
pub mod mig;
pub mod nouveau;
pub mod phase;
pub mod pod_failure;
pub mod precompiled;
pub mod stage_pod;
pub mod validation;
pub mod validation_outcome;
pub mod validation_test;
pub mod verdict;

use std::collections::BTreeMap;

use assessment::Assessment;
use gpu_operator_crd::{PolicyName, PoolName, policy_status::Overlap};
use k8s_openapi::jiff::Timestamp;

use crate::{
    catalogue::Catalogue,
    desired::{node::DesiredNode, variants::Variants},
    inventory::{Fleet, UnmanagedNode, membership::name_of},
    world::World,
};

/// The fleet, with the progress of every node.
#[derive(Debug)]
pub struct AssessedFleet<'w> {
    /// The observed state.
    pub world: &'w World,
    /// The catalogue, including the models that policies add.
    pub catalogue: &'w Catalogue,
    /// The members of each policy that has any, or that selects nodes that are opted out.
    pub policies: BTreeMap<PolicyName, PolicyMembers<'w>>,
    /// Nodes that no policy governs.
    pub unmanaged: Vec<UnmanagedNode<'w>>,
    /// The variants that nodes should have.
    pub variants: Variants<'w>,
}

/// The nodes of one policy.
#[derive(Debug, Default)]
pub struct PolicyMembers<'w> {
    /// Its members, by pool, in the order of their names.
    pub pools: BTreeMap<PoolName, Vec<Assessment<'w>>>,
    /// The number of nodes that it selects and that are opted out by their label.
    pub opted_out: u32,
    /// Other policies that select nodes of this policy, or whose nodes this policy selects.
    pub overlaps: BTreeMap<PolicyName, Overlap>,
}

impl PolicyMembers<'_> {
    /// Counts a node that another policy also selects.
    fn overlap(&mut self, other: &PolicyName, governed_by: &PolicyName) {
        let overlap = self.overlaps.entry(other.clone()).or_insert_with(|| Overlap {
            policy: other.clone(),
            nodes: 0,
            governed_by: governed_by.clone(),
        });
        overlap.nodes += 1;
    }
}

impl AssessedFleet<'_> {
    /// Returns every member.
    pub fn members(&self) -> impl Iterator<Item = &Assessment<'_>> {
        self.policies.values().flat_map(|policy| policy.pools.values().flatten())
    }
}

/// Assesses every governed node. `variants` are those that nodes need.
#[must_use]
pub fn assess<'w>(fleet: Fleet<'w, DesiredNode<'w>>, variants: Variants<'w>, now: Timestamp) -> AssessedFleet<'w> {
    let Fleet { world, catalogue, governed, unmanaged } = fleet;
    let mut policies: BTreeMap<PolicyName, PolicyMembers<'_>> = BTreeMap::new();
    for policy in unmanaged.iter().filter_map(|node| node.selected_by) {
        policies.entry(name_of(policy)).or_default().opted_out += 1;
    }
    for node in governed {
        let assessment = Assessment::of(node, catalogue, world, now);
        let policy = name_of(assessment.member.policy);
        for other in &assessment.member.others {
            policies.entry(policy.clone()).or_default().overlap(other, &policy);
            policies.entry(other.clone()).or_default().overlap(&policy, &policy);
        }
        let pools = &mut policies.entry(policy).or_default().pools;
        pools.entry(assessment.member.pool.name.clone()).or_default().push(assessment);
    }
    AssessedFleet { world, catalogue, policies, unmanaged, variants }
}
