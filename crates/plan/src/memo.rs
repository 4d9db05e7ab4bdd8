//! The memo of the plan: what was settled in the last plan and has not changed since. It is a map with a key per node, and decides nothing:
//! with it the plan is the same as without it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::take,
    sync::Arc,
};

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, NodeName, PolicyName, PoolName};

use crate::{
    assess::{MostGpus, most_gpus},
    clock::Clock,
    desired::{DesiredNode, variant::KnownVariants},
    ground::Ground,
    inventory::membership::name_of,
    pool_settings::PoolSettings,
    rollout::ledger,
    settings::Settings,
    sorted::Sorted,
    summary::Settled,
    world::{DaemonSets, ForeignPod, ForeignSet, GpuSlice, NodeFacts, PodFacts, World},
};

/// The catalogue must be the same in each plan.
#[derive(Clone, Debug, Default)]
pub struct Memo {
    ground: Option<GroundKey>,
    nodes: BTreeMap<NodeName, Remembered>,
    variants: KnownVariants,
    /// How many nodes the last plan could not take from here.
    planned: usize,
}

#[derive(Clone, Debug)]
struct Remembered {
    input: NodeInput,
    settled: Settled,
}

/// Everything that the plan of a node depends on, beside the ground. Mirrors keep an object's `Arc` unless its facts change, so only those of
/// changed objects are compared.
#[derive(Clone, Debug)]
struct NodeInput {
    node: Arc<NodeFacts>,
    gpu_node: Option<Arc<GpuNode>>,
    pods: Vec<Arc<PodFacts>>,
    foreign_pods: Vec<Arc<ForeignPod>>,
    gpu_slices: Vec<Arc<GpuSlice>>,
}

impl NodeInput {
    fn of(ground: &Ground<'_>, world: &World, node: &Arc<NodeFacts>) -> Self {
        Self {
            node: Arc::clone(node),
            gpu_node: world.gpu_nodes.get(&node.name).cloned(),
            pods: world.pods.on(&node.name).cloned().collect(),
            foreign_pods: ground.third_party.pods_on(&node.name).cloned().collect(),
            gpu_slices: ground.third_party.slices_of(&node.name).iter().copied().cloned().collect(),
        }
    }

    fn is_same(
        &self,
        ground: &Ground<'_>,
        world: &World,
        node: &Arc<NodeFacts>,
        gpu_node: Option<&Arc<GpuNode>>,
    ) -> bool {
        let gpu_node = match (&self.gpu_node, gpu_node) {
            (Some(one), Some(other)) => is_same(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        is_same(&self.node, node)
            && gpu_node
            && are_same(&self.pods, world.pods.on(&node.name))
            && are_same(&self.foreign_pods, ground.third_party.pods_on(&node.name))
            && are_same(&self.gpu_slices, ground.third_party.slices_of(&node.name).iter().copied())
    }
}

fn is_same<T: PartialEq>(one: &Arc<T>, other: &Arc<T>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

fn are_same<'o, T: PartialEq + 'o>(one: &[Arc<T>], mut other: impl Iterator<Item = &'o Arc<T>>) -> bool {
    one.iter().all(|one| other.next().is_some_and(|other| is_same(one, other))) && other.next().is_none()
}

/// Everything that the plan of every node depends on.
#[derive(Clone, Debug)]
struct GroundKey {
    settings: Settings,
    /// Those that are being deleted, too.
    policies: Vec<Arc<ClusterGpuPolicy>>,
    daemon_sets: DaemonSets,
    third_party: Vec<(String, ForeignSet)>,
    missing_images: BTreeSet<String>,
    refusals: BTreeMap<String, String>,
    unreadable_policies: BTreeSet<PolicyName>,
}

impl GroundKey {
    fn of(settings: &Settings, ground: &Ground<'_>, world: &World) -> Self {
        let refusal = |(set, error): (&&str, &&str)| ((*set).to_owned(), (*error).to_owned());
        Self {
            settings: settings.clone(),
            policies: world.policies.values().cloned().collect(),
            daemon_sets: world.daemon_sets.clone(),
            third_party: ground.third_party.sets().map(|(key, set)| (key.to_owned(), set.clone())).collect(),
            missing_images: ground.missing_images.iter().map(|&image| image.to_owned()).collect(),
            refusals: ground.refusals.iter().map(refusal).collect(),
            unreadable_policies: world.unreadable_policies.clone(),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        let is_same_set = |((one, facts), (other, others)): (_, _)| one == other && is_same(facts, others);
        let same_sets = self.daemon_sets.len() == other.daemon_sets.len()
            && self.daemon_sets.iter().zip(other.daemon_sets.iter()).all(is_same_set);
        let same_policies = self.policies.len() == other.policies.len()
            && self.policies.iter().zip(&other.policies).all(|(one, other)| is_same_policy(one, other));
        same_sets
            && same_policies
            && self.settings == other.settings
            && self.third_party == other.third_party
            && self.missing_images == other.missing_images
            && self.refusals == other.refusals
            && self.unreadable_policies == other.unreadable_policies
    }
}

/// Of a policy's status only the published keys matter to a node: the rest changes every second in a rollout.
fn is_same_policy(one: &Arc<ClusterGpuPolicy>, other: &Arc<ClusterGpuPolicy>) -> bool {
    let of_nodes = |policy: &ClusterGpuPolicy| {
        let metadata = policy.metadata.clone();
        (metadata.uid, metadata.generation, metadata.creation_timestamp, metadata.deletion_timestamp)
    };
    let keys = |policy: &ClusterGpuPolicy| policy.status.as_ref().map(|status| status.published_keys.clone());
    Arc::ptr_eq(one, other)
        || one.metadata.name == other.metadata.name
            && of_nodes(one) == of_nodes(other)
            && one.spec == other.spec
            && keys(one) == keys(other)
}

/// The settled nodes of the last plan that have not changed since.
#[derive(Debug, Default)]
pub struct Recalled(BTreeMap<NodeName, Settled>);

impl Recalled {
    pub fn contains(&self, node: &NodeName) -> bool {
        self.0.contains_key(node)
    }

    /// Takes out the nodes of pools that do not rest: an update is under way or pending, or the number of GPUs that the pool promises is
    /// greater than any node has. `governed` are all other nodes.
    pub fn take_restless(
        &mut self,
        governed: &[DesiredNode<'_>],
        ground: &Ground<'_>,
        world: &World,
    ) -> BTreeSet<NodeName> {
        let pool = |node: &DesiredNode<'_>| (name_of(node.policy), node.pool.name.clone());
        let is_moving = |node: &&DesiredNode<'_>| {
            let rollout = node.gpu_node.and_then(|gpu_node| gpu_node.spec.rollout.as_ref());
            node.is_outdated() || rollout.is_some()
        };
        let mut restless: BTreeSet<(PolicyName, PoolName)> = governed.iter().filter(is_moving).map(pool).collect();
        for policy in world.policies.values() {
            let (_, pools) = ledger::recorded(policy);
            restless.extend(pools.iter().map(|known| (name_of(policy), known.pool.clone())));
        }
        let most = most_gpus(governed, self.0.values().filter_map(Settled::member).map(Arc::as_ref));
        restless.extend(unmet_promises(&most, ground).cloned());
        if restless.is_empty() {
            return BTreeSet::new();
        }
        let is_restless = |_: &NodeName, settled: &mut Settled| {
            let member = settled.member();
            member.is_some_and(|member| restless.contains(&(member.policy.clone(), member.summary.pool.clone())))
        };
        self.0.extract_if(.., is_restless).map(|(name, _)| name).collect()
    }

    /// In the order of their names.
    pub fn into_nodes(self) -> Vec<Settled> {
        self.0.into_values().collect()
    }
}

fn unmet_promises<'m>(most: &'m MostGpus, ground: &Ground<'_>) -> impl Iterator<Item = &'m (PolicyName, PoolName)> {
    let is_unmet = |(policy, pool): &(PolicyName, PoolName), most: u32| {
        let promised = ground.settings_of(policy, pool).and_then(PoolSettings::promised_gpus);
        promised.is_some_and(|promised| promised > most)
    };
    most.iter().filter(move |(pool, most)| is_unmet(pool, **most)).map(|(pool, _)| pool)
}

impl Memo {
    /// Returns the nodes that need not be planned again, and registers until when with the clock. Forgets everything if the ground has
    /// changed.
    pub fn recall(&mut self, settings: &Settings, ground: &Ground<'_>, world: &World, clock: &Clock) -> Recalled {
        let key = GroundKey::of(settings, ground, world);
        if !self.ground.replace(key).zip(self.ground.as_ref()).is_some_and(|(before, now)| before.is_same(now)) {
            self.nodes.clear();
            self.variants.clear();
        }
        // An update of such a node may begin, or has left its pool.
        let slots = world.policies.values().flat_map(|policy| ledger::recorded(policy).0);
        let with_slot: BTreeSet<&NodeName> = slots.map(|slot| &slot.node).collect();
        let has_answers = |name: &NodeName| {
            world.gpu_pods.contains_key(name)
                || world.unconfirmed.contains(name)
                || world.contested_nodes.contains_key(name)
        };
        let (mut nodes, mut gpu_nodes) = (Sorted::of(&world.nodes), Sorted::of(&world.gpu_nodes));
        self.nodes.retain(|name, known| {
            let gpu_node = gpu_nodes.find(name);
            let is_same = |node| known.input.is_same(ground, world, node, gpu_node);
            // Only the times of what has not changed matter.
            nodes.find(name).is_some_and(is_same) && known.settled.until().is_none_or(|until| !clock.reached(until))
        });
        let is_open = |name: &NodeName| with_slot.contains(name) || has_answers(name) || world.is_unreadable(name);
        let recalled = self.nodes.iter().filter(|(name, _)| !is_open(name));
        Recalled(recalled.map(|(name, known)| (name.clone(), known.settled.clone())).collect())
    }

    /// Returns how many nodes the last plan could not take from the memo.
    pub fn planned(&self) -> usize {
        self.planned
    }

    /// Returns how many nodes are remembered.
    pub fn remembered(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the variants of the last plan, until [`Self::remember`] sets those of this one.
    pub fn take_variants(&mut self) -> KnownVariants {
        take(&mut self.variants)
    }

    /// Remembers the settled nodes of a plan.
    pub fn remember(
        &mut self,
        settled: Vec<Settled>,
        variants: KnownVariants,
        planned: usize,
        ground: &Ground<'_>,
        world: &World,
    ) {
        (self.variants, self.planned) = (variants, planned);
        for settled in settled {
            let name = settled.node().clone();
            let Some(node) = world.nodes.get(&name) else { continue };
            let input = NodeInput::of(ground, world, node);
            self.nodes.insert(name, Remembered { input, settled });
        }
    }
}
