//! Pool checks: pools that can have no node because of how they are written.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{
    ClusterGpuPolicy, PoolName, keys,
    policy::{Pool, Selector},
    reason::Reason,
};

use crate::{
    catalogue::Catalogue,
    inventory::{gpus::MIXED, node_labels::canonical, published_keys},
};

/// The errors by pool: a reason, and a message that includes what to write instead.
pub type PoolProblems = BTreeMap<PoolName, (Reason, String)>;

/// Returns the errors in a policy's pools. `on_nodes` are the models of nodes, which may be missing in the catalogue.
pub fn pool_problems(catalogue: &Catalogue, policy: &ClusterGpuPolicy, on_nodes: &BTreeSet<String>) -> PoolProblems {
    let claims: Vec<Claim<'_>> = policy.spec.pools.iter().map(|pool| Claim::of(catalogue, pool)).collect();
    let problem = |(index, claim): (usize, &Claim<'_>)| {
        let unknown = || Some((Reason::UnknownModel, claim.unknown_model(catalogue, on_nodes)?));
        let shadowed = || Some((Reason::PoolShadowed, claim.shadow(claims.get(..index)?)?));
        let own_label = || Some((Reason::PoolMatchesOwnLabel, claim.own_label(policy)?));
        Some((claim.pool.name.clone(), own_label().or_else(unknown).or_else(shadowed)?))
    };
    claims.iter().enumerate().filter_map(problem).collect()
}

/// The nodes that a pool matches.
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

    /// Returns a message if the pool matches a model that is neither in the catalogue nor on any node.
    fn unknown_model(&self, catalogue: &Catalogue, on_nodes: &BTreeSet<String>) -> Option<String> {
        let unknown =
            |model: &&String| catalogue.model(model).is_none() && !on_nodes.contains(*model) && model.as_str() != MIXED;
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

    /// Returns a message if the pool matches by a label that the policy publishes, which is ignored.
    fn own_label(&self, policy: &ClusterGpuPolicy) -> Option<String> {
        let Selector { match_labels, match_expressions } = self.selector()?;
        let mut keys = match_labels.keys().chain(match_expressions.iter().map(|requirement| &requirement.key));
        let key = keys.find(|key| published_keys::comes_from(policy, key))?;
        let otherwise = if keys::is_discovered(key) {
            "remove compatibility.labels".to_owned()
        } else {
            format!("remove {key} from nodeLabels")
        };
        Some(format!(
            "match.nodeSelector contains label {key}, which this policy publishes: published labels are ignored for matching, because they would move nodes between pools; match by models or by another label, or {otherwise}"
        ))
    }

    /// Returns a message if earlier pools match all of the pool's nodes: each of its models is matched by an earlier
    /// pool that requires no more labels.
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

    /// Returns whether it matches every node of a model, or of any model, that `other` matches.
    fn takes(&self, model: Option<&String>, other: &Self) -> bool {
        let of_models = self.models.is_empty() || model.is_some_and(|model| self.models.contains(model));
        let any = Selector::default();
        of_models && self.selector().unwrap_or(&any).is_implied_by(other.selector().unwrap_or(&any))
    }
}
