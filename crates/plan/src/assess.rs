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

use std::{collections::BTreeMap, rc::Rc, sync::Arc};

use driver_version::Ceilings;
use gpu_operator_crd::{NodeName, PolicyName, PoolName, policy_status::Overlap, reason::Reason};
use member::Member;
use validation::ValidationState;
use verdict::Verdict;

use crate::{
    clock::Clock,
    desired::{DesiredNode, variant::Variants},
    ground::Ground,
    inventory::{
        Fleet, UnmanagedNode, gpus,
        membership::{GoverningPool, name_of, overlap_note},
        records,
    },
    note::Note,
    pool_settings::PoolSettings,
    sorted::Sorted,
    summary::{Settled, SettledMember},
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
    fn of(desired: DesiredNode<'w>, ground: &Ground<'_>, most_gpus: &MostGpus) -> Self {
        let catalogue = ground.catalogue();
        let pool = (name_of(desired.policy), desired.pool.name.clone());
        let clock = &*Rc::clone(&desired.clock);
        let member = Member::of(desired, most_gpus.get(&pool).copied(), clock);
        let missing_image = preflight::missing_precompiled(ground, &member);
        let validation = validation::of(&member, ground.log_tails, clock);
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

/// The most GPUs that the bus of a node has ever shown, by policy and pool, of the nodes that have reported. Only for pools that name a
/// number of GPUs.
pub type MostGpus = BTreeMap<(PolicyName, PoolName), u32>;

pub fn most_gpus<'n>(governed: &[DesiredNode<'_>], settled: impl Iterator<Item = &'n SettledMember>) -> MostGpus {
    let of_governed = |node: &DesiredNode<'_>| Some((name_of(node.policy), node.pool.name.clone(), most_seen(node)?));
    let of_settled = |node: &SettledMember| Some((node.policy.clone(), node.summary.pool.clone(), node.most_gpus?));
    let mut most_gpus = MostGpus::new();
    for (policy, pool, seen) in governed.iter().filter_map(of_governed).chain(settled.filter_map(of_settled)) {
        let most = most_gpus.entry((policy, pool)).or_default();
        *most = seen.max(*most);
    }
    most_gpus
}

/// Returns the most GPUs that a node's bus has ever shown, if its pool names a number. A pool's number is not that of a node with an
/// annotation.
pub fn most_seen(node: &DesiredNode<'_>) -> Option<u32> {
    let counts = node.discovery.expected.annotated.is_none() && node.pool.settings.promised_gpus().is_some();
    let report = records::last_report(node.gpu_node).filter(|_| counts)?;
    Some(node.discovery.seen.with_passed_through(Some(report)))
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
    pub policies: BTreeMap<PolicyName, PolicyMembers<'w>>,
    pub unmanaged: Vec<UnmanagedNode<'w>>,
    pub variants: Variants<'w>,
    /// In the order of their names.
    settled: Vec<NodeName>,
}

#[derive(Debug, Default)]
pub struct PolicyMembers<'w> {
    pub pools: BTreeMap<PoolName, PoolMembers<'w>>,
    /// The number of selected nodes that their label opts out.
    pub opted_out: u32,
    /// Policies that select nodes of this policy, or whose nodes this policy selects.
    pub overlaps: BTreeMap<PolicyName, Overlap>,
}

#[derive(Debug)]
pub struct PoolMembers<'w> {
    pub settings: &'w PoolSettings<'w>,
    /// In the order of their names.
    pub assessed: Vec<Assessment<'w>>,
    /// The others, for which nothing is written while the pool rests. In the order of their names.
    pub settled: Vec<Arc<SettledMember>>,
}

impl PoolMembers<'_> {
    pub fn count(&self) -> usize {
        self.assessed.len() + self.settled.len()
    }
}

impl<'w> PolicyMembers<'w> {
    fn pool(&mut self, name: &PoolName, settings: &'w PoolSettings<'w>) -> &mut PoolMembers<'w> {
        let new = || PoolMembers { settings, assessed: Vec::new(), settled: Vec::new() };
        self.pools.entry(name.clone()).or_insert_with(new)
    }

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
        self.pools().flat_map(|pool| &pool.assessed)
    }

    /// Returns the objects of nodes on which something may have to be done, or that no policy governs.
    pub fn unsettled<'o, T>(
        &self,
        objects: &'o BTreeMap<NodeName, T>,
    ) -> impl Iterator<Item = (&'o NodeName, &'o T)> + use<'o, '_, T> {
        let mut settled = Sorted::of(self.settled.iter().map(|name| (name, ())));
        objects.iter().filter(move |(name, _)| settled.find(*name).is_none())
    }

    pub fn pools(&self) -> impl Iterator<Item = &PoolMembers<'_>> {
        self.policies.values().flat_map(|policy| policy.pools.values())
    }
}

/// `variants` are those that nodes need, the settled ones included.
pub fn assess<'w>(
    fleet: Fleet<'w, DesiredNode<'w>>,
    settled: &[Settled],
    variants: Variants<'w>,
    clock: &Clock,
) -> AssessedFleet<'w> {
    let Fleet { world, ground, governed, unmanaged } = fleet;
    let all = world.policies.keys().map(|policy| (policy.clone(), PolicyMembers::default()));
    let mut policies: BTreeMap<PolicyName, PolicyMembers<'_>> = all.collect();
    let opted_out = unmanaged.iter().filter_map(|node| node.selected_by).map(name_of);
    for policy in opted_out.chain(settled.iter().filter_map(|node| node.selected_by().cloned())) {
        policies.entry(policy).or_default().opted_out += 1;
    }
    let overlap =
        |policies: &mut BTreeMap<PolicyName, PolicyMembers<'w>>, policy: &PolicyName, others: &[PolicyName]| {
            for other in others {
                policies.entry(policy.clone()).or_default().overlap(other, policy);
                policies.entry(other.clone()).or_default().overlap(policy, policy);
            }
        };
    let most_gpus = most_gpus(&governed, settled.iter().filter_map(Settled::member).map(Arc::as_ref));
    for node in governed {
        let assessment = Assessment::of(node, ground, &most_gpus);
        clock.join(assessment.member.clock.next());
        let policy = name_of(assessment.member.policy);
        overlap(&mut policies, &policy, &assessment.member.others);
        let GoverningPool { name, settings } = &assessment.member.pool;
        policies.entry(policy).or_default().pool(&name.clone(), settings).assessed.push(assessment);
    }
    let names = settled.iter().map(|node| node.node().clone()).collect();
    for node in settled.iter().filter_map(Settled::member) {
        overlap(&mut policies, &node.policy, &node.others);
        let Some(settings) = ground.settings_of(&node.policy, &node.summary.pool) else { continue };
        policies
            .entry(node.policy.clone())
            .or_default()
            .pool(&node.summary.pool, settings)
            .settled
            .push(Arc::clone(node));
    }
    AssessedFleet { world, ground, policies, unmanaged, variants, settled: names }
}
