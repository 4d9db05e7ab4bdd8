//! The labels that a Node should carry because of us: our own, and those that its policy publishes. A published key
//! that carries somebody else's value is theirs, and stays.

use gpu_operator_crd::{
    gpunode::Groups,
    keys,
    policy::{Labels, Stage},
};
use serde::Serialize;

use crate::{revision::group, world::NodeFacts};

/// One write to a Node: all the labels that should be ours from then on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabelWrite {
    /// The Node that is meant: another one may bear its name by now, or none.
    pub uid: String,
    /// The whole set; what we applied before and is not in it goes.
    pub labels: Labels,
    /// Whether to take keys over from other writers. Never where a user's key is published for the first time.
    pub force: bool,
}

/// What the labels of a node come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLabels {
    /// The write that is needed, if any.
    pub write: Option<LabelWrite>,
    /// The published keys that are, or will be, ours.
    pub published: Labels,
    /// Published keys that carry another value: key and that value.
    pub conflicts: Vec<(String, String)>,
}

/// The labels of a node that no policy governs: none of this operator's, but for the stages that it keeps for now.
#[must_use]
pub fn none<'a>(node: &NodeFacts, kept: impl IntoIterator<Item = (&'a str, &'a str)>) -> NodeLabels {
    let kept = kept.into_iter().map(|(key, group)| (key.to_owned(), group.to_owned()));
    write_if_needed(node, kept.collect(), NodeLabels::default())
}

/// What our own labels say of a node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// Its model.
    pub model: Option<&'a str>,
    /// The highest CUDA version that its driver serves.
    pub cuda: Option<&'a str>,
}

/// The labels of a node of a policy.
#[must_use]
pub fn of(node: &NodeFacts, known: Known<'_>, pool: &str, groups: &Groups, published: &Labels) -> NodeLabels {
    let mut labels = Labels::from([(keys::POOL.to_owned(), pool.to_owned())]);
    labels.extend(known.model.map(|model| (keys::MODEL.to_owned(), model.to_owned())));
    labels.extend(known.cuda.map(|cuda| (keys::CUDA_VERSION.to_owned(), cuda.to_owned())));
    for stage in Stage::ALL {
        if let Some(group) = group(groups, stage) {
            labels.insert(stage.key().to_owned(), group.to_owned());
        }
    }
    let mut result = NodeLabels::default();
    for (key, value) in published {
        match node.labels.get(key.as_str()).filter(|_| !node.owned_labels.contains(key.as_str())) {
            Some(present) if present != value => result.conflicts.push((key.clone(), present.to_string())),
            // Somebody else says the same; it stays theirs.
            Some(_) => {}
            None => {
                result.published.insert(key.clone(), value.clone());
            }
        }
    }
    write_if_needed(node, labels, result)
}

fn write_if_needed(node: &NodeFacts, mut labels: Labels, mut result: NodeLabels) -> NodeLabels {
    // A key of ours that is not wanted and that somebody else wrote is taken by another value than theirs, or else it would
    // stay theirs, and goes with the next write.
    for key in keys::NODE_LABELS.into_iter().filter(|key| !node.owned_labels.contains(*key)) {
        if let Some(present) = node.labels.get(key).filter(|_| !labels.contains_key(key)) {
            labels.insert(key.to_owned(), if present.is_empty() { "none" } else { "" }.to_owned());
        }
    }
    // Somebody wrote to a key of ours: it is taken back by force first, and what a user wants published follows without.
    let taken = |(key, value): (&String, &String)| {
        !node.owned_labels.contains(key.as_str())
            && node.labels.get(key.as_str()).is_some_and(|present| present != value)
    };
    if labels.iter().any(taken) {
        result.published.retain(|key, _| node.owned_labels.contains(key.as_str()));
    }
    labels.extend(result.published.clone());
    let ours = node.owned_labels.iter().filter_map(|key| Some((key.as_str(), node.labels.get(key)?.as_str())));
    if !ours.eq(labels.iter().map(|(key, value)| (key.as_str(), value.as_str()))) {
        let force = result.published.keys().all(|key| node.owned_labels.contains(key.as_str()));
        result.write = Some(LabelWrite { uid: node.uid.clone(), labels, force });
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: Known<'static> = Known { model: Some("m"), cuda: None };

    fn node(labels: &[(&str, &str)], owned: &[&str]) -> NodeFacts {
        NodeFacts {
            labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            owned_labels: owned.iter().map(|key| (*key).into()).collect(),
            ..NodeFacts::default()
        }
    }

    fn publish(value: &str) -> Labels {
        Labels::from([("accelerator".to_owned(), value.to_owned())])
    }

    #[test]
    fn a_key_that_carries_another_value_is_a_conflict_and_stays() {
        let labels = of(&node(&[("accelerator", "theirs")], &[]), KNOWN, "p", &Groups::default(), &publish("ours"));
        assert_eq!(labels.conflicts, [("accelerator".to_owned(), "theirs".to_owned())]);
        assert!(!labels.write.expect("our own labels are written").labels.contains_key("accelerator"));
    }

    #[test]
    fn a_key_that_somebody_else_gave_the_same_value_stays_theirs() {
        let labels = of(&node(&[("accelerator", "same")], &[]), KNOWN, "p", &Groups::default(), &publish("same"));
        assert_eq!((labels.conflicts.len(), labels.published.len()), (0, 0));
    }

    #[test]
    fn a_key_is_published_without_force_and_kept_with_it() {
        let first = of(&node(&[], &[]), KNOWN, "p", &Groups::default(), &publish("ours"));
        assert!(!first.write.expect("a write").force);
        let later =
            of(&node(&[("accelerator", "ours")], &["accelerator"]), KNOWN, "p", &Groups::default(), &publish("new"));
        assert!(later.write.expect("a write").force);
    }

    #[test]
    fn a_key_of_ours_that_somebody_took_is_taken_back_before_anything_is_published() {
        let taken = node(&[(keys::MODEL, "theirs")], &[]);
        let write = of(&taken, KNOWN, "p", &Groups::default(), &publish("ours")).write.expect("a write");
        assert!(write.force && !write.labels.contains_key("accelerator"), "{write:?}");
    }

    #[test]
    fn a_key_of_ours_that_somebody_wrote_and_nobody_wants_is_taken_and_then_let_go() {
        for theirs in ["x", ""] {
            let taken = none(&node(&[(keys::DRIVER, theirs)], &[]), None).write.expect("a write");
            assert!(taken.force && taken.labels[keys::DRIVER] != theirs, "{taken:?}");
            let ours = node(&[(keys::DRIVER, &taken.labels[keys::DRIVER])], &[keys::DRIVER]);
            assert_eq!(none(&ours, None).write.expect("a write").labels, Labels::new());
        }
        let governed = of(&node(&[(keys::DRIVER, "x")], &[]), KNOWN, "p", &Groups::default(), &publish("ours"));
        let write = governed.write.expect("a write");
        assert!(write.force && write.labels[keys::DRIVER].is_empty() && !write.labels.contains_key("accelerator"));
    }

    #[test]
    fn labels_that_are_there_already_are_not_written() {
        let settled = node(&[(keys::MODEL, "m"), (keys::POOL, "p"), ("x", "y")], &[keys::MODEL, keys::POOL]);
        assert_eq!(of(&settled, KNOWN, "p", &Groups::default(), &Labels::new()).write, None);
    }

    #[test]
    fn a_node_without_a_policy_keeps_nothing_of_ours_and_everything_of_others() {
        let write = none(&node(&[(keys::MODEL, "m"), ("x", "y")], &[keys::MODEL]), None).write.expect("a write");
        assert!(write.labels.is_empty());
        assert_eq!(none(&node(&[("x", "y")], &[]), None).write, None);
    }
}
