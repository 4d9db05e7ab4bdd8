//! Which policy governs a node, and which of its pools; pools that can have no node.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    ClusterGpuPolicy, PolicyName, PoolName, keys,
    policy::{Pool, Selector},
    reason::Reason,
};

use crate::{
    catalogue::Catalogue,
    ground::policies::{PolicyPools, by_precedence},
    inventory::{gpus::MIXED, node_labels::canonical},
    note::Note,
    pool_settings::PoolSettings,
    world::{NodeFacts, NodeLabels, World},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmanaged {
    NoGpu,
    /// A GPU was detected, and the probe has not reported it yet.
    Unreported,
    NoPolicy,
    OptedOut,
}

pub fn opted_out(node: &NodeFacts) -> bool {
    node.labels.get(keys::MANAGED).is_some_and(|value| value != "true")
}

pub fn overlap_note(governing: &PolicyName, others: &[PolicyName]) -> Option<Note> {
    let other = others.first()?;
    let message = format!(
        "policies {governing:?} and {other:?} both select this node; {governing:?} governs it, because it has a higher priority or is older. Narrow either nodeSelector, or set priority"
    );
    Some(Note::new(Reason::PolicyOverlap, message))
}

pub fn name_of(policy: &ClusterGpuPolicy) -> PolicyName {
    policy.metadata.name.as_deref().unwrap_or_default().into()
}

pub fn governs(policy: &ClusterGpuPolicy, node: &NodeFacts) -> bool {
    selects(policy.spec.node_selector.as_ref(), &node.labels)
}

/// The pool of nodes that have GPUs according to a label only.
pub(super) const UNKNOWN_MODEL: &str = "unknown-model";

#[derive(Clone, Debug)]
pub struct GoverningPool<'p> {
    /// The named pool's name, or the model.
    pub name: PoolName,
    pub settings: &'p PoolSettings<'p>,
}

impl<'p> GoverningPool<'p> {
    /// Returns the first named pool that matches, or the implicit pool of the model.
    pub fn of(catalogue: &Catalogue, of: &'p PolicyPools<'p>, model: Option<&str>, labels: &NodeLabels) -> Self {
        let matches = |pool: &Pool| is_in_pool(catalogue, of.policy, pool, model, labels);
        let settings = of.named.iter().find(|settings| settings.pool.is_some_and(matches)).unwrap_or(&of.implicit);
        let name = settings.pool.map_or_else(|| model.unwrap_or(UNKNOWN_MODEL).into(), |pool| pool.name.clone());
        Self { name, settings }
    }
}

/// Without a selector every node is selected.
pub fn selects(selector: Option<&Selector>, labels: &NodeLabels) -> bool {
    selector.is_none_or(|selector| selector.matches(|key| labels.get(key).map(Interned::as_str)))
}

/// Whether a named pool matches. It may use any cloud's name of a model.
fn is_in_pool(
    catalogue: &Catalogue,
    policy: &ClusterGpuPolicy,
    pool: &Pool,
    model: Option<&str>,
    labels: &NodeLabels,
) -> bool {
    let matches = &pool.matches;
    let of_model = |wanted: &String| Some(canonical(catalogue, wanted)).as_deref() == model;
    (matches.models.is_empty() || matches.models.iter().any(of_model))
        && matches.node_selector.as_ref().is_none_or(|selector| {
            selector.matches(|key| labels.get(key).map(Interned::as_str).filter(|_| !publishes(policy, key)))
        })
}

/// A reason and a message with the correction, by pool.
pub type PoolProblems = BTreeMap<PoolName, (Reason, String)>;

/// `on_nodes` are the models of nodes, which may be missing in the catalogue.
pub fn pool_problems(catalogue: &Catalogue, policy: &ClusterGpuPolicy, on_nodes: &BTreeSet<&str>) -> PoolProblems {
    let claims: Vec<Claim<'_>> = policy.spec.pools.iter().map(|pool| Claim::of(catalogue, pool)).collect();
    let problem = |(index, claim): (usize, &Claim<'_>)| {
        let unknown = || Some((Reason::UnknownModel, claim.unknown_model(catalogue, on_nodes)?));
        let shadowed = || Some((Reason::PoolShadowed, claim.shadow(claims.get(..index)?)?));
        let own_label = || Some((Reason::PoolMatchesOwnLabel, claim.own_label(policy)?));
        Some((claim.pool.name.clone(), own_label().or_else(unknown).or_else(shadowed)?))
    };
    claims.iter().enumerate().filter_map(problem).collect()
}

struct Claim<'p> {
    pool: &'p Pool,
    /// Canonical names; empty for all models.
    models: Vec<String>,
}

impl<'p> Claim<'p> {
    fn of(catalogue: &Catalogue, pool: &'p Pool) -> Self {
        let models = pool.matches.models.iter().map(|model| canonical(catalogue, model)).collect();
        Self { pool, models }
    }

    fn selector(&self) -> Option<&Selector> {
        self.pool.matches.node_selector.as_ref()
    }

    /// For a model that is neither in the catalogue nor on any node.
    fn unknown_model(&self, catalogue: &Catalogue, on_nodes: &BTreeSet<&str>) -> Option<String> {
        let unknown = |model: &&String| {
            catalogue.model(model).is_none() && !on_nodes.contains(model.as_str()) && model.as_str() != MIXED
        };
        let model = self.models.iter().find(unknown)?;
        let near = catalogue
            .models()
            .map(|known| (strsim::jaro_winkler(model, &known.name), known.name.as_str()))
            .max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(format!(
            "match.models: model {model} is neither in the catalogue nor on any node; write {}, or the model in a node's GpuNode",
            near.1
        ))
    }

    /// For a label that the policy publishes, which is ignored in a match.
    fn own_label(&self, policy: &ClusterGpuPolicy) -> Option<String> {
        let key = self.selector()?.keys().find(|key| publishes(policy, key))?;
        let otherwise = if keys::is_discovered(key) {
            "remove compatibility.labels".to_owned()
        } else {
            format!("remove {key} from nodeLabels")
        };
        Some(format!(
            "match.nodeSelector contains label {key}, which this policy publishes: published labels are ignored for matching, because they would move nodes between pools; match by models or by another label, or {otherwise}"
        ))
    }

    /// For a pool whose nodes all match earlier pools: each of its models is matched by one that requires no more labels.
    fn shadow(&self, earlier: &[Self]) -> Option<String> {
        let takers: BTreeSet<&PoolName> = if self.models.is_empty() {
            [&earlier.iter().find(|taker| taker.takes(None, self))?.pool.name].into()
        } else {
            let taker = |model| Some(&earlier.iter().find(|taker| taker.takes(Some(model), self))?.pool.name);
            self.models.iter().map(taker).collect::<Option<_>>()?
        };
        let (pools, match_all) = if takers.len() == 1 { ("pool", "matches") } else { ("pools", "match") };
        let takers = takers.into_iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" and ");
        Some(format!(
            "no node reaches this pool: {pools} {takers}, listed earlier, {match_all} all of its nodes. Move this pool above {takers}, or narrow the match of {takers}"
        ))
    }

    /// Whether it matches every node of this model (or of any) that `other` matches.
    fn takes(&self, model: Option<&String>, other: &Self) -> bool {
        let of_models = self.models.is_empty() || model.is_some_and(|model| self.models.contains(model));
        let any = Selector::default();
        of_models && self.selector().unwrap_or(&any).is_implied_by(other.selector().unwrap_or(&any))
    }
}

/// Whether a label comes from the policy itself. Pools ignore such labels, whichever program wrote them: a node would join a pool by a label that
/// another pool wrote, and could leave it again.
pub fn publishes(policy: &ClusterGpuPolicy, key: &str) -> bool {
    let published = policy.spec.labels_of(&policy.spec.pools).map(|label| label.key.as_str());
    published.chain(keys::NODE_LABELS).any(|named| named == key)
        || policy.spec.compatibility.wants_gfd() && keys::is_discovered(key)
}

// Nodes whose GpuNode cannot be parsed are left unchanged, but their policy counts them. They may be in the middle of an update, so
// they keep their slot in their pool, also after they have left their policy.

#[derive(Debug)]
pub struct UnreadableNode<'w> {
    pub node: &'w NodeFacts,
    /// `None` if it has left its policy, which only the GpuNode names.
    pub policy: Option<PolicyName>,
    /// From this operator's label; without one, the pool of unknown models.
    pub pool: PoolName,
}

/// Returns those that have a policy or the label of a pool.
pub fn unreadable_nodes(world: &World) -> Vec<UnreadableNode<'_>> {
    if world.unreadable_gpu_nodes.is_empty() {
        return Vec::new();
    }
    // One that is being deleted waits for its nodes.
    let is_deleting = |policy: &&ClusterGpuPolicy| policy.metadata.deletion_timestamp.is_some();
    let policies: Vec<_> =
        by_precedence(world).into_iter().chain(world.policies.values().map(Arc::as_ref).filter(is_deleting)).collect();
    let of = |node| {
        let policy =
            policies.iter().find(|policy| governs(policy, node) && !opted_out(node)).map(|policy| name_of(policy));
        let pool = node.labels.get(keys::POOL).filter(|_| node.owned_labels.contains(keys::POOL));
        let pool = pool.map(Interned::as_str).or_else(|| policy.as_ref().map(|_| UNKNOWN_MODEL))?.into();
        Some(UnreadableNode { node, policy, pool })
    };
    world.unreadable_gpu_nodes.iter().filter_map(|name| of(world.nodes.get(name)?)).collect()
}

/// Returns those that may be in the middle of an update. One that has left its policy may be of any pool of that name.
pub fn unreadable_of_pool<'w>(
    world: &'w World,
    policy: &ClusterGpuPolicy,
    pool: &PoolName,
) -> impl Iterator<Item = &'w NodeFacts> {
    let policy = name_of(policy);
    let is_of_pool = move |found: &UnreadableNode<'_>| {
        found.policy.as_ref().is_none_or(|name| *name == policy) && found.pool == *pool
    };
    unreadable_nodes(world).into_iter().filter(is_of_pool).map(|found| found.node)
}
