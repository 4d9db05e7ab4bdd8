//! Progress of each governed node: its components, which of them are proven to work, and what keeps it from being ready.

pub mod bound_gpus;
pub mod cuda;
pub mod driver;
pub mod driver_version;
pub mod error_line;
pub mod health;
pub mod holders;
pub mod installer_log;
pub mod log_records;
pub mod member;
pub mod mig;
pub mod phase;
pub mod pod_failure;
pub mod preflight;
pub mod validation;
pub mod verdict;

use std::collections::BTreeMap;

use driver_version::Ceilings;
use gpu_operator_crd::{PolicyName, PoolName, policy_status::Overlap, reason::Reason};
use member::Member;
use validation::ValidationState;
use verdict::Verdict;

use crate::{
    clock::Clock,
    desired::{DesiredNode, variant::Variants},
    ground::Ground,
    inventory::{
        Fleet, UnmanagedNode, gpus,
        membership::{name_of, overlap_note},
        records,
    },
    note::Note,
    world::World,
};

#[derive(Debug)]
pub struct Assessment<'w> {
    pub member: Member<'w>,
    /// Apply even if the node works.
    pub notes: Vec<Note>,
    /// The precompiled driver image that the policy selects, if it does not exist.
    pub missing_image: Option<String>,
    /// The evidence against its driver, if there is any.
    pub against_driver: Option<Note>,
    /// Whatever is allocatable.
    pub broken_stage: Option<Verdict>,
    pub cuda: Ceilings,
    pub validation: ValidationState,
    pub verdict: Verdict,
}

impl<'w> Assessment<'w> {
    fn of(
        desired: DesiredNode<'w>,
        ground: &Ground<'_>,
        world: &'w World,
        most_gpus: &MostGpus,
        clock: &Clock,
    ) -> Self {
        let catalogue = ground.catalogue();
        let pool = (name_of(desired.policy), desired.pool.name.clone());
        let member = Member::of(desired, world, most_gpus.get(&pool).copied(), clock);
        let missing_image = preflight::missing_precompiled(ground, &member);
        let validation = validation::of(&member, &world.log_tails, clock);
        let ceilings = driver_version::ceilings(catalogue, &member);
        let host_driver = driver_version::host_driver_problem(catalogue, &member);
        let against_driver = driver::against_driver(&member, clock);
        let broken_stage = phase::broken_stage(&member, ground, clock);
        let evidence = phase::Evidence {
            validation: &validation,
            host_driver,
            against_driver: against_driver.as_ref(),
            broken_stage: broken_stage.as_ref(),
            lacks_for_cuda: cuda::lacking(&member, catalogue, clock),
        };
        let verdict = phase::judge(&member, evidence, ground, clock);
        let notes = notes(&member, missing_image.as_deref());
        Self { member, notes, missing_image, against_driver, broken_stage, cuda: ceilings, validation, verdict }
    }
}

/// The most GPUs that the bus of a node has ever shown, by policy and pool, of the nodes that have reported.
type MostGpus = BTreeMap<(PolicyName, PoolName), u32>;

fn most_gpus(governed: &[DesiredNode<'_>]) -> MostGpus {
    let mut most_gpus = MostGpus::new();
    // A pool's number is not that of a node with an annotation.
    for node in governed.iter().filter(|node| node.discovery.expected.annotated.is_none()) {
        if let Some(report) = records::last_report(node.gpu_node) {
            let most = most_gpus.entry((name_of(node.policy), node.pool.name.clone())).or_default();
            *most = node.discovery.seen.with_passed_through(Some(report)).max(*most);
        }
    }
    most_gpus
}

fn notes(member: &Member<'_>, missing_image: Option<&str>) -> Vec<Note> {
    let passed_through =
        gpus::passed_through(member.last_report()).map(|message| Note::new(Reason::GpusPassedThrough, message));
    let compiled = missing_image.and_then(|image| preflight::precompiled_note(member, image));
    let overlap = overlap_note(&name_of(member.policy), &member.others);
    let known = member.discovery.notes.iter().cloned().chain(member.external.notes());
    known.chain(passed_through).chain(compiled).chain(overlap).collect()
}

#[derive(Debug)]
pub struct AssessedFleet<'w> {
    pub world: &'w World,
    pub ground: &'w Ground<'w>,
    /// The policies that have members, or that select nodes that are opted out.
    pub policies: BTreeMap<PolicyName, PolicyMembers<'w>>,
    pub unmanaged: Vec<UnmanagedNode<'w>>,
    pub variants: Variants<'w>,
}

#[derive(Debug, Default)]
pub struct PolicyMembers<'w> {
    /// By pool, in the order of their names.
    pub pools: BTreeMap<PoolName, Vec<Assessment<'w>>>,
    /// The number of selected nodes that their label opts out.
    pub opted_out: u32,
    /// Policies that select nodes of this policy, or whose nodes this policy selects.
    pub overlaps: BTreeMap<PolicyName, Overlap>,
}

impl PolicyMembers<'_> {
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
    pub fn members(&self) -> impl Iterator<Item = &Assessment<'_>> {
        self.policies.values().flat_map(|policy| policy.pools.values().flatten())
    }
}

/// `variants` are those that nodes need.
pub fn assess<'w>(fleet: Fleet<'w, DesiredNode<'w>>, variants: Variants<'w>, clock: &Clock) -> AssessedFleet<'w> {
    let Fleet { world, ground, governed, unmanaged } = fleet;
    let mut policies: BTreeMap<PolicyName, PolicyMembers<'_>> = BTreeMap::new();
    for policy in unmanaged.iter().filter_map(|node| node.selected_by) {
        policies.entry(name_of(policy)).or_default().opted_out += 1;
    }
    let most_gpus = most_gpus(&governed);
    for node in governed {
        let assessment = Assessment::of(node, ground, world, &most_gpus, clock);
        let policy = name_of(assessment.member.policy);
        for other in &assessment.member.others {
            policies.entry(policy.clone()).or_default().overlap(other, &policy);
            policies.entry(other.clone()).or_default().overlap(&policy, &policy);
        }
        let pools = &mut policies.entry(policy).or_default().pools;
        pools.entry(assessment.member.pool.name.clone()).or_default().push(assessment);
    }
    AssessedFleet { world, ground, policies, unmanaged, variants }
}
