//! The forecast: what would happen if policies were applied. It computes the operator's plan repeatedly: what it begins ends well at once
//! ([`ending`]), and time that it waits for passes ([`course`]). So it reports which nodes are updated, in which order and at the expense
//! of which pods, but not how long that takes.
//!
//! Evicted pods start again on other nodes, which may be updated later: the forecast counts pods where they run now.

mod course;
mod ending;
mod inputs;
mod result;

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, ConditionType, NodeName, PolicyName, keys, policy::Stage,
};

use crate::{
    ground::Ground,
    inventory::{self, membership::name_of},
    output::{
        body::{Body, LabelWrite},
        write::Write,
    },
    plan::plan,
    world::{Concern, NodeFacts, World},
};

pub use inputs::{DisruptionBudget, Inputs};
pub use result::{Forecast, Outcome, PodOutcome, Problem, StageChange, Update, Waiting};

/// Each policy replaces the one of its name.
pub fn forecast(inputs: Inputs<'_>, policies: &[ClusterGpuPolicy]) -> Vec<Forecast> {
    let before = ending::observed(inputs);
    let after = ending::with_policies(&before, policies, inputs.now);
    let first = first(inputs, &before, &after);
    let mut forecasts = course::follow(inputs, first.world.clone(), policies);
    for forecast in &mut forecasts {
        add(forecast, &first, &after);
    }
    forecasts
}

// What else changes besides the updates of nodes.

/// The first plan once policies have been applied.
struct First {
    /// With its DaemonSets applied.
    world: World,
    statuses: BTreeMap<PolicyName, ClusterGpuPolicyStatus>,
    /// Without the writes of the plan before.
    writes: Vec<Write>,
    /// The nodes of each policy.
    before: BTreeMap<PolicyName, BTreeSet<NodeName>>,
    after: BTreeMap<PolicyName, BTreeSet<NodeName>>,
}

fn first(inputs: Inputs<'_>, before: &World, after: &World) -> First {
    let Inputs { settings, catalogue, now, .. } = inputs;
    let old = plan(settings, catalogue, before, now);
    let new = plan(settings, catalogue, after, now);
    let is_known = |write: &&Write| {
        let same = old.writes.binary_search_by(|known| known.target.cmp(&write.target)).map(|at| &old.writes[at]);
        same.is_ok_and(|known| known.body == write.body)
    };
    let writes = new.writes.iter().filter(|write| !is_known(write)).cloned().collect();
    let nodes = |world: &World| governed(inputs, world);
    let world = ending::with_daemon_sets(after, &new);
    let statuses = plan(settings, catalogue, &world, now).statuses;
    First { world, statuses, writes, before: nodes(before), after: nodes(after) }
}

fn governed(inputs: Inputs<'_>, world: &World) -> BTreeMap<PolicyName, BTreeSet<NodeName>> {
    let ground = Ground::of(inputs.catalogue, world, &inputs.settings.namespace);
    let mut nodes: BTreeMap<PolicyName, BTreeSet<NodeName>> = BTreeMap::new();
    for node in inventory::take(&ground, world, |_| true).governed {
        nodes.entry(name_of(node.policy)).or_default().insert(node.node.name.clone());
    }
    nodes
}

fn add(forecast: &mut Forecast, first: &First, world: &World) {
    let of_policy =
        |nodes: &BTreeMap<PolicyName, BTreeSet<NodeName>>| nodes.get(&forecast.policy).cloned().unwrap_or_default();
    let (before, after) = (of_policy(&first.before), of_policy(&first.after));
    let stays = |node: &NodeName| first.after.values().any(|nodes| nodes.contains(node));
    forecast.leaving = before.difference(&after).filter(|node| !stays(node)).cloned().collect();
    let concerns = |write: &&Write| match write.concerns() {
        Concern::Policy(policy) => policy == forecast.policy,
        Concern::Node(node) => after.contains(&node),
        Concern::Fleet => true,
    };
    let mut labels: BTreeMap<(String, Option<String>), usize> = BTreeMap::new();
    for write in first.writes.iter().filter(concerns) {
        if let Body::Labels(wanted) = &write.body {
            let node = world.nodes.get(&NodeName::from(write.target.name.as_str()));
            for change in node.into_iter().flat_map(|node| label_changes(node, wanted)) {
                *labels.entry(change).or_default() += 1;
            }
        }
        forecast.changes.extend(change(write, world));
    }
    forecast.changes.extend(labels.into_iter().map(|((key, value), nodes)| {
        let nodes = if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
        match value {
            Some(value) => format!("label {key}={value} on {nodes}"),
            None => format!("label {key} removed from {nodes}"),
        }
    }));
    forecast.changes.sort();
    let status = first.statuses.get(&forecast.policy);
    let conditions = status.into_iter().flat_map(|status| &status.conditions);
    let is_problem = |kind: &str, status: &str| {
        (kind == <&str>::from(ConditionType::Stalled) && status == "True")
            || (kind == <&str>::from(ConditionType::Accepted) && status == "False")
    };
    forecast.problems = conditions
        .filter(|condition| is_problem(&condition.type_, &condition.status))
        .map(|condition| Problem {
            condition: condition.type_.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        })
        .collect();
}

/// Without the labels that place operands.
fn label_changes(node: &NodeFacts, wanted: &LabelWrite) -> Vec<(String, Option<String>)> {
    let is_own = |key: &str| {
        Stage::ALL.into_iter().any(|stage| stage.key() == key) || [keys::POOL, keys::CLIENTS].contains(&key)
    };
    let set = wanted
        .labels
        .iter()
        .filter(|(key, value)| node.labels.get(key.as_str()).is_none_or(|present| present.as_str() != value.as_str()));
    let set = set.map(|(key, value)| (key.clone(), Some(value.clone())));
    let removed = node.owned_labels.iter().filter(|key| !wanted.labels.contains_key(key.as_str()));
    let removed = removed.map(|key| (key.to_string(), None));
    set.chain(removed).filter(|(key, _)| !is_own(key)).collect()
}

/// Returns a change that users may notice, if it is not part of an update.
fn change(write: &Write, world: &World) -> Option<String> {
    match &write.body {
        Body::DaemonSet(_) if world.daemon_sets.contains_key(&write.target.name) => {
            Some(format!("{} changed; its pods get that when they are created next", write.target))
        }
        Body::DaemonSet(_) | Body::RuntimeClass(_) => Some(format!("{} created or changed", write.target)),
        Body::Conditions(_) | Body::Taints(_) => Some(format!("{} changed", write.target)),
        _ => None,
    }
}
