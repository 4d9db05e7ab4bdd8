//! The labels that this operator sets on a Node: its own, and those that the policy publishes. A published key with another writer's value
//! is left unchanged.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    PoolName,
    gpunode::StageRevisions,
    keys,
    policy::{Labels, NodeLabel, Stage},
};

use super::body::LabelWrite;
use crate::{assess::member::Member, output::gfd, pool_settings::PoolSettings, revision, world::NodeFacts};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLabels {
    pub write: Option<LabelWrite>,
    /// Those that this operator owns or will own.
    pub published: Labels,
    /// Published keys with another value on the Node, and that value.
    pub conflicts: Vec<(String, String)>,
}

/// For a node that no policy governs: only the labels of the revisions that it keeps for now.
pub fn none(node: &NodeFacts, kept: &StageRevisions) -> NodeLabels {
    write_if_needed(node, of_revisions(kept).collect(), NodeLabels::default())
}

/// Keeps all labels of this operator, with these revisions whatever the labels name.
pub fn restored(node: &NodeFacts, revisions: &StageRevisions) -> NodeLabels {
    let is_of_stage = |key: &str| Stage::ALL.into_iter().any(|stage| stage.key() == key);
    let kept = owned(node).filter(|(key, _)| !is_of_stage(key) && *key != keys::CLIENTS);
    write_if_needed(node, kept.chain(of_revisions(revisions)).collect(), NodeLabels::default())
}

fn of_revisions(revisions: &StageRevisions) -> impl Iterator<Item = (&str, &str)> {
    Stage::ALL.into_iter().filter_map(|stage| Some((stage.key(), revisions.get(stage)?.as_str())))
}

fn owned(node: &NodeFacts) -> impl Iterator<Item = (&str, &str)> {
    node.owned_labels.iter().filter_map(|key| Some((key.as_str(), node.labels.get(key)?.as_str())))
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    pub model: Option<&'a str>,
    /// The highest CUDA version that the driver supports.
    pub cuda: Option<&'a str>,
    /// Whether DaemonSets whose pods use the driver should give way.
    pub pauses_clients: bool,
}

pub fn of(
    node: &NodeFacts,
    known: Known<'_>,
    pool: &PoolName,
    revisions: &StageRevisions,
    published: &Labels,
) -> NodeLabels {
    let mut labels = BTreeMap::from([(keys::POOL, pool.as_str())]);
    labels.extend(known.model.map(|model| (keys::MODEL, model)));
    labels.extend(known.cuda.map(|cuda| (keys::CUDA_VERSION, cuda)));
    labels.extend(known.pauses_clients.then_some((keys::CLIENTS, keys::CLIENTS_PAUSED)));
    labels.extend(of_revisions(revisions));
    let mut result = NodeLabels::default();
    for (key, value) in published {
        match node.labels.get(key.as_str()).filter(|_| !node.owned_labels.contains(key.as_str())) {
            Some(present) if present != value => result.conflicts.push((key.clone(), present.to_string())),
            // Another writer has set the same value and keeps the key.
            Some(_) => {}
            None => {
                result.published.insert(key.clone(), value.clone());
            }
        }
    }
    write_if_needed(node, labels, result)
}

fn write_if_needed<'a>(node: &NodeFacts, mut labels: BTreeMap<&'a str, &'a str>, mut result: NodeLabels) -> NodeLabels {
    // One of this operator's keys that another writer set and that is not needed is first taken over with another
    // value, because it would otherwise keep its owner, and removed by the next write.
    for key in keys::NODE_LABELS.into_iter().filter(|key| !node.owned_labels.contains(*key)) {
        if let Some(present) = node.labels.get(key).filter(|_| !labels.contains_key(key)) {
            labels.insert(key, if present.is_empty() { "none" } else { "" });
        }
    }
    // If another writer changed one of this operator's keys, the key is first taken back by force; the published keys
    // follow in a write without force.
    let taken = |(key, value): (&&str, &&str)| {
        !node.owned_labels.contains(*key) && node.labels.get(*key).is_some_and(|present| present != value)
    };
    if labels.iter().any(taken) {
        result.published.retain(|key, _| node.owned_labels.contains(key.as_str()));
    }
    let mut labels: BTreeMap<&str, &str> = labels;
    labels.extend(result.published.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    if !owned(node).eq(labels.iter().map(|(key, value)| (*key, *value))) {
        let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let force = result.published.keys().all(|key| node.owned_labels.contains(key.as_str()));
        result.write =
            Some(LabelWrite { uid: node.uid.clone(), labels, force, seen: revision::labelled_revisions(node) });
    }
    result
}

// Labels outside this operator's prefix: keys that the policy sets, and labels that replace those of other programs.

pub fn published_labels(member: &Member<'_>) -> Labels {
    let mut labels =
        if member.policy.spec.compatibility.wants_gfd() { discovered_labels(member) } else { Labels::new() };
    // The user's keys take precedence.
    labels.extend(named_labels(member.pool.settings, member.model()));
    labels
}

/// A label with the model as value is omitted until the model is known.
fn named_labels(pool: &PoolSettings<'_>, model: Option<&str>) -> Labels {
    let value = |label: &NodeLabel| Some(label.value.as_deref().or(model)?.to_owned());
    pool.policy.spec.labels_of(pool.pool).filter_map(|label| Some((label.key.clone(), value(label)?))).collect()
}

/// Returns the labels of GPU feature discovery by the last report that includes them; without one the present labels are kept.
fn discovered_labels(member: &Member<'_>) -> Labels {
    let report = member.report;
    let mut labels = report.and_then(|report| gfd::labels(report, &member.resource_layout)).unwrap_or_else(|| {
        let owned = member.node.owned_labels.iter().filter(|key| keys::is_discovered(key));
        owned.filter_map(|key| Some((key.to_string(), member.node.labels.get(key)?.to_string()))).collect()
    });
    if member.on_bus() > 0 || member.node.owned_labels.contains(keys::GPU_PRESENT) {
        labels.insert(keys::GPU_PRESENT.to_owned(), "true".to_owned());
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(labels: &[(&str, &str)], owned: &[&str]) -> NodeFacts {
        NodeFacts {
            labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            owned_labels: owned.iter().map(|key| (*key).into()).collect(),
            ..NodeFacts::default()
        }
    }

    /// Returns the labels of a node of pool `p` with model `m`.
    fn governed(node: &NodeFacts, published: &Labels) -> NodeLabels {
        of(node, Known { model: Some("m"), ..Known::default() }, &"p".into(), &StageRevisions::default(), published)
    }

    fn publish(value: &str) -> Labels {
        Labels::from([("accelerator".to_owned(), value.to_owned())])
    }

    #[test]
    fn a_key_with_another_value_is_a_conflict_and_is_kept() {
        let labels = governed(&node(&[("accelerator", "other")], &[]), &publish("own"));
        assert_eq!(labels.conflicts, [("accelerator".to_owned(), "other".to_owned())]);
        assert!(!labels.write.expect("a write").labels.contains_key("accelerator"));
    }

    #[test]
    fn a_key_with_the_same_value_of_another_writer_keeps_its_owner() {
        let labels = governed(&node(&[("accelerator", "same")], &[]), &publish("same"));
        assert_eq!((labels.conflicts.len(), labels.published.len()), (0, 0));
    }

    #[test]
    fn a_key_is_published_without_force_and_updated_with_it() {
        let first = governed(&node(&[], &[]), &publish("own"));
        assert!(!first.write.expect("a write").force);
        let later = governed(&node(&[("accelerator", "own")], &["accelerator"]), &publish("new"));
        assert!(later.write.expect("a write").force);
    }

    #[test]
    fn an_own_key_is_taken_back_before_other_keys_are_published() {
        let taken = node(&[(keys::MODEL, "other")], &[]);
        let write = governed(&taken, &publish("own")).write.expect("a write");
        assert!(write.force && !write.labels.contains_key("accelerator"), "{write:?}");
    }

    #[test]
    fn an_unneeded_own_key_of_another_writer_is_removed() {
        let nothing = StageRevisions::default();
        for value in ["x", ""] {
            let taken = none(&node(&[(keys::DRIVER, value)], &[]), &nothing).write.expect("a write");
            assert!(taken.force && taken.labels[keys::DRIVER] != value, "{taken:?}");
            let owned = node(&[(keys::DRIVER, &taken.labels[keys::DRIVER])], &[keys::DRIVER]);
            assert_eq!(none(&owned, &nothing).write.expect("a write").labels, Labels::new());
        }
        let write = governed(&node(&[(keys::DRIVER, "x")], &[]), &publish("own")).write.expect("a write");
        assert!(write.force && write.labels[keys::DRIVER].is_empty() && !write.labels.contains_key("accelerator"));
    }

    #[test]
    fn unchanged_labels_are_not_written() {
        let settled = node(&[(keys::MODEL, "m"), (keys::POOL, "p"), ("x", "y")], &[keys::MODEL, keys::POOL]);
        assert_eq!(governed(&settled, &Labels::new()).write, None);
    }

    #[test]
    fn a_node_without_a_policy_keeps_only_labels_of_others() {
        let nothing = StageRevisions::default();
        let write = none(&node(&[(keys::MODEL, "m"), ("x", "y")], &[keys::MODEL]), &nothing).write.expect("a write");
        assert!(write.labels.is_empty());
        assert_eq!(none(&node(&[("x", "y")], &[]), &nothing).write, None);
    }
}
