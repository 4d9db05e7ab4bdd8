//! Enrolment: which policy governs a node, and what every later step wants to know of it as a member of its pool.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNode,
    gpunode::Groups,
    keys,
    policy::{Pool, Stage},
    policy_status::Overlap,
    reason::Reason,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::{
    cuda::{self, Ceilings},
    discover::{self, Expected},
    foreign::Foreign,
    health, host_driver,
    member::{self, Member},
    note::Note,
    pool, precompiled,
    promise::Promise,
    validation::{self, Trial},
    variant::{self, Variant, VariantKey},
};
use crate::{
    catalogue::Catalogue,
    settings::PASSING,
    world::{NodeFacts, Offer, PodFacts, TaintFact, World},
};

/// The pool of nodes of which only a label has said that they have GPUs.
const UNKNOWN_MODEL: &str = "unknown-model";

/// One policy's share of the fleet.
#[derive(Default)]
pub struct Share<'w> {
    /// Its members by pool.
    pub pools: BTreeMap<String, Vec<Member<'w>>>,
    /// Nodes that it selects and that are out by their label.
    pub opted_out: u32,
    /// Other policies that select nodes of its, or it of theirs.
    pub overlaps: BTreeMap<&'w str, Overlap>,
}

impl<'w> Share<'w> {
    /// Counts a node that another policy selects as well.
    pub fn overlap(&mut self, other: &'w str, governed_by: &str) {
        let overlap = self.overlaps.entry(other).or_insert_with(|| Overlap {
            policy: other.to_owned(),
            nodes: 0,
            governed_by: governed_by.to_owned(),
        });
        overlap.nodes += 1;
    }
}

/// The models that nodes have, also those that the catalogue lacks.
pub fn known_models(fleet: &BTreeMap<&str, Share<'_>>) -> BTreeSet<String> {
    let members = fleet.values().flat_map(|share| share.pools.values().flatten());
    members.filter_map(|member| member.model().map(str::to_owned)).collect()
}

/// Whether a node's label takes it out of every policy.
pub fn opted_out(node: &NodeFacts) -> bool {
    node.labels.get(keys::MANAGED).is_some_and(|value| value != "true")
}

/// That other policies select a node as well.
pub fn overlap_note(governing: &str, others: &[&str]) -> Option<Note> {
    let other = others.first()?;
    let message = format!(
        "policies {governing} and {other} both select this node; {governing} is older and has it; narrow one's nodeSelector"
    );
    Some(Note::new(Reason::PolicyOverlap, message))
}

/// A policy's name.
pub fn name_of(policy: &ClusterGpuPolicy) -> &str {
    policy.metadata.name.as_deref().unwrap_or_default()
}

/// Policies that are not being deleted, the oldest first: of two that claim a node, the older one keeps it.
pub fn by_age(world: &World) -> Vec<&ClusterGpuPolicy> {
    let mut policies: Vec<_> = world
        .policies
        .values()
        .map(Arc::as_ref)
        .filter(|policy| policy.metadata.deletion_timestamp.is_none())
        .collect();
    policies.sort_by_key(|policy| (policy.creation_timestamp(), policy.name_any()));
    policies
}

pub fn governs(policy: &ClusterGpuPolicy, node: &NodeFacts) -> bool {
    pool::selects(policy.spec.node_selector.as_ref(), &node.labels)
}

/// The variants in use, each resolved once however many nodes share it, and what nodes are enrolled by.
pub struct Sets<'w> {
    pub catalogue: &'w Catalogue,
    pub world: &'w World,
    pub now: Timestamp,
    /// For how long a passing phase stands, by policy.
    pub lulls: HashMap<&'w str, Duration>,
    pub variants: HashMap<String, BTreeMap<VariantKey, Arc<Variant>>>,
    pub policies: BTreeMap<String, &'w ClusterGpuPolicy>,
}

impl<'w> Sets<'w> {
    fn resolve(&mut self, policy: &'w ClusterGpuPolicy, pool: Option<&Pool>, key: VariantKey) -> Arc<Variant> {
        self.policies.insert(key.policy.clone(), policy);
        let of_policy = self.variants.entry(key.policy.clone()).or_default();
        Arc::clone(of_policy.entry(key).or_insert_with_key(|key| Arc::new(variant::resolve(policy, pool, key.clone()))))
    }

    /// What the device plugin that a node has makes of a GPU: while a new one waits for its turn, the old one counts.
    fn offer(&self, policy: &ClusterGpuPolicy, pool: Option<&Pool>, have: &Groups) -> Offer {
        let set = have.device_plugin.as_deref().map(|group| variant::daemon_set_name(Stage::DevicePlugin, group));
        let set = set.and_then(|set| self.world.daemon_sets.get(&set));
        set.map_or_else(|| Offer::of(&pool::device_plugin(policy, pool)), |set| set.offer.clone())
    }

    /// Makes a node a member of its policy's pool.
    pub fn enroll(
        &mut self,
        policy: &'w ClusterGpuPolicy,
        node: &'w NodeFacts,
        gpu_node: Option<&'w GpuNode>,
        discovery: discover::Discovery<'w>,
        pods: Vec<&'w PodFacts>,
    ) -> Member<'w> {
        let (catalogue, now) = (self.catalogue, self.now);
        let named_pool = pool::named_pool(catalogue, policy, discovery.model.as_deref(), &node.labels);
        let model = || discovery.model.clone().unwrap_or_else(|| UNKNOWN_MODEL.to_owned());
        let pool = named_pool.map_or_else(model, |pool| pool.name.clone());
        let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
        let report = status.and_then(|status| status.report.as_ref());
        let have = member::node_groups(node);
        let foreign_policy = (pool::foreign_stack(policy, named_pool), pool::device_plugin(policy, named_pool).flavor);
        let foreign = Foreign::of(self.world, node, &have, status, foreign_policy);
        // What a node wants goes by its container runtime, which says nothing of itself while it is down.
        let known = status.zip(report).filter(|_| !node.runtime_is_silent());
        let wanted = known.map(|(status, report)| {
            let subject = variant::driver_subject(catalogue, policy, node, &discovery, (status, report));
            let key = variant::choose(policy, (&pool, named_pool), &subject, &foreign)?;
            Ok(self.resolve(policy, named_pool, key))
        });
        let Expected { annotated, known } = discovery.expected;
        let expected = annotated.or(named_pool.and_then(|pool| pool.gpus_per_node)).or(known);
        let tolerated = |taint: &&TaintFact| {
            let tolerations = policy.spec.defaults.tolerations.as_ref();
            tolerations.is_none_or(|tolerations| tolerations.iter().any(|toleration| taint.tolerated_by(toleration)))
        };
        let others = node.taints.iter().filter(|taint| taint.key != keys::UNHEALTHY_TAINT);
        let untolerated = others.into_iter().find(|taint| !tolerated(taint));
        let missing = match report {
            Some(report) => expected.unwrap_or_default().saturating_sub(discover::on_bus(Some(report))),
            None => 0,
        };
        let health_policy = pool::health(policy, named_pool);
        let health = health::of(report, member::probe_pod(&pods), missing, now);
        let passed_through =
            discover::passed_through(report).map(|message| Note::new(Reason::GpusPassedThrough, message));
        let notes = discovery.notes.iter().cloned().chain(foreign.notes()).chain(passed_through).collect();
        let offer = self.offer(policy, named_pool, &have);
        let promise = expected.map(|expected| Promise::of(expected, health.unhealthy, report, &offer));
        let mut member = Member {
            node,
            gpu_node,
            discovery,
            policy,
            pool,
            named_pool,
            untolerated,
            notes,
            health_policy,
            health,
            wanted,
            have,
            missing_image: None,
            host_misfit: None,
            cuda: Ceilings::default(),
            expected,
            offer,
            promise,
            foreign,
            gpu_holders: self.world.gpu_holders.get(&node.name).map(Vec::as_slice),
            pods,
            trial: Trial::default(),
            now,
            lull: self.lulls.get(name_of(policy)).copied().unwrap_or(PASSING),
        };
        precompiled::look(catalogue, &mut member);
        member.host_misfit = host_driver::misfit(catalogue, &member);
        member.trial = validation::of(&member, &self.world.last_words);
        member.cuda = cuda::ceilings(catalogue, &member);
        member
    }

    /// Every variant in use, with its policy.
    pub fn all(&self) -> impl Iterator<Item = (&'w ClusterGpuPolicy, &Variant)> {
        self.variants
            .iter()
            .filter_map(|(policy, variants)| Some((*self.policies.get(policy)?, variants)))
            .flat_map(|(policy, variants)| variants.values().map(move |variant| (policy, variant.as_ref())))
    }
}
