//! What all nodes share: everything that the steps for one node may read besides the node itself. It is computed once per plan.

pub mod foreign_stacks;
pub mod policies;
pub mod pull_error;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
};

use foreign_stacks::ForeignStacks;
use gpu_operator_crd::{PolicyName, PoolName};
use policies::{AddedModels, PolicyPools};
use pull_error::lacks_image;

use crate::{
    catalogue::Catalogue,
    container_names::PREFLIGHT_DRIVER,
    pool_settings::PoolSettings,
    revision::daemon_set_name,
    world::{ContainerFacts, DaemonSets, LogTails, NodeFacts, ObservedTime, PodFacts, Role, World},
};

pub const PROBE_DAEMON_SET: &str = "nodestack-nvml-probe";
pub const DETECTOR_DAEMON_SET: &str = "nodestack-gpu-detector";

#[derive(Debug)]
pub struct Ground<'w> {
    pub models: AddedModels<'w>,
    /// Those that are not being deleted, in the order of their precedence.
    pub policies: Vec<PolicyPools<'w>>,
    /// Of this operator.
    pub daemon_sets: &'w DaemonSets,
    pub third_party: ForeignStacks<'w>,
    /// The beginning of the names of the preflight pods for each revision whose driver image does not exist.
    pub missing_images: BTreeSet<&'w str>,
    /// The API server's errors by DaemonSet, and kubelet's about volumes by pod.
    pub refusals: BTreeMap<&'w str, &'w str>,
    pub agent_refusal: Option<AgentRefusal<'w>>,
    pub log_tails: &'w LogTails,
}

impl<'w> Ground<'w> {
    /// `namespace` is that of this operator.
    pub fn of(catalogue: &'w Catalogue, world: &'w World, namespace: &str) -> Self {
        let refusals = refusals(world);
        let policies = policies::by_precedence(world);
        Self {
            models: AddedModels::of(catalogue, &policies),
            policies: policies.into_iter().map(PolicyPools::of).collect(),
            daemon_sets: &world.daemon_sets,
            third_party: ForeignStacks::of(world, namespace),
            missing_images: missing_images(world),
            agent_refusal: agent_refusal(world, &refusals),
            log_tails: &world.log_tails,
            refusals,
        }
    }

    /// Returns the settings of a named pool, or of the implicit pool of a model.
    pub fn settings_of(&self, policy: &PolicyName, pool: &PoolName) -> Option<&PoolSettings<'w>> {
        let of_policy = |pools: &&PolicyPools<'_>| pools.policy.metadata.name.as_deref() == Some(policy.as_str());
        let PolicyPools { named, implicit, .. } = self.policies.iter().find(of_policy)?;
        let is_it = |settings: &&PoolSettings<'_>| settings.pool.is_some_and(|named| named.name == *pool);
        Some(named.iter().find(is_it).unwrap_or(implicit))
    }

    /// The catalogue, with the models that policies add.
    pub fn catalogue(&self) -> &Catalogue {
        &self.models.catalogue
    }
}

/// Returns the errors for DaemonSets of which no pod was accepted since: a rejection, or that of a webhook that does not answer. A quota
/// accepts some pods and rejects others.
fn refusals(world: &World) -> BTreeMap<&str, &str> {
    let mut taken: HashMap<String, ObservedTime> = HashMap::new();
    for pod in world.pods.values().filter(|_| !world.refusals.is_empty()) {
        if let Some((set, created)) = daemon_set_of(pod).zip(pod.created) {
            taken.entry(set).and_modify(|last| *last = created.max(*last)).or_insert(created);
        }
    }
    let refusals = world.refusals.iter().filter(|(set, refusal)| {
        let taken_since = taken.get(*set).is_some_and(|taken| refusal.at.is_some_and(|at| taken.reported() > at));
        refusal.message.contains("exceeded quota") || !taken_since
    });
    refusals.map(|(set, refusal)| (set.as_str(), refusal.message.as_str())).collect()
}

/// The operator does not watch the detector's pods.
fn daemon_set_of(pod: &PodFacts) -> Option<String> {
    match pod.role {
        Role::Probe => Some(PROBE_DAEMON_SET.to_owned()),
        Role::Operand(stage) => Some(daemon_set_name(stage, pod.revision.as_ref()?)),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug)]
pub struct AgentRefusal<'w> {
    set: &'static str,
    error: &'w str,
}

impl fmt::Display for AgentRefusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { set, error } = self;
        write!(f, "the API server rejects the pods of DaemonSet {set}: {error}")
    }
}

/// Returns the API server's error for the chart's agents, if it rejects their pods and they are missing: the Event with the error outlives
/// its cause by an hour. A GpuNode shows that the detector's pods run.
fn agent_refusal<'w>(world: &'w World, refusals: &BTreeMap<&'w str, &'w str>) -> Option<AgentRefusal<'w>> {
    let refusal = |set| refusals.get(set).map(|error| AgentRefusal { set, error });
    refusal(PROBE_DAEMON_SET)
        .filter(|_| lacks_probes(world))
        .or_else(|| refusal(DETECTOR_DAEMON_SET).filter(|_| world.gpu_nodes.is_empty()))
}

fn lacks_probes(world: &World) -> bool {
    let pods = world.pods.values().filter(|pod| pod.role == Role::Probe);
    let have_one: HashSet<_> = pods.map(|pod| &pod.node).collect();
    let is_missing = |node: &NodeFacts| node.is_labelled_present() && !have_one.contains(&node.name);
    have_one.is_empty() || world.nodes.values().any(|node| is_missing(node))
}

fn missing_images(world: &World) -> BTreeSet<&str> {
    let is_missing = |container: &ContainerFacts| container.name.as_str() == PREFLIGHT_DRIVER && lacks_image(container);
    let pods = world.pods.values().filter(|pod| pod.role == Role::Preflight && pod.containers.iter().any(is_missing));
    pods.filter_map(|pod| preflight_prefix(pod)).collect()
}

/// Returns the beginning of a preflight pod's name, which is the same on all nodes.
pub fn preflight_prefix(pod: &PodFacts) -> Option<&str> {
    pod.name.rsplit_once('-').map(|(prefix, _)| prefix)
}
