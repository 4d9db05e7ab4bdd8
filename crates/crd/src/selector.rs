//! Selectors of nodes, with their words checked when they are written.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{Key, LabelValue, MatchLabels};

/// A selector of nodes by their labels: Kubernetes' `LabelSelector`, with its words checked when it is written. One that
/// could not be understood later on would match nothing, and take the stack off every node.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    /// Labels that a node must have, with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "MatchLabels")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements, all of which a node must meet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub match_expressions: Vec<Requirement>,
}

/// One requirement of a [`Selector`].
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
    "In and NotIn need values, and Exists and DoesNotExist take none"
))]
pub struct Requirement {
    /// The label's key.
    #[schemars(with = "Key")]
    pub key: String,
    /// What is required of it.
    pub operator: Operator,
    /// The values that `In` and `NotIn` speak of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<LabelValue>", length(max = 40))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub values: Vec<String>,
}

/// What a [`Requirement`] requires of a label.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "Kubernetes' own words")]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Whether a node is meant whose labels `value_of` tells by their keys.
    #[must_use]
    pub fn matches<'l>(&self, value_of: impl Fn(&str) -> Option<&'l str>) -> bool {
        let listed = |values: &[String], value: &str| values.iter().any(|listed| listed == value);
        self.match_labels.iter().all(|(key, value)| value_of(key) == Some(value))
            && self.match_expressions.iter().all(|Requirement { key, operator, values }| match operator {
                Operator::In => value_of(key).is_some_and(|value| listed(values, value)),
                Operator::NotIn => value_of(key).is_none_or(|value| !listed(values, value)),
                Operator::Exists => value_of(key).is_some(),
                Operator::DoesNotExist => value_of(key).is_none(),
            })
    }

    /// Whether this asks for nothing that `other` does not ask for too, so that every node that `other` means is meant by
    /// this one. Told by their words alone: of two ways to write the same it knows nothing.
    #[must_use]
    pub fn asks_no_more_than(&self, other: &Self) -> bool {
        self.match_labels.iter().all(|(key, value)| other.match_labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| other.match_expressions.contains(requirement))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_means_what_kubernetes_means_by_it() {
        let labels = BTreeMap::from([("zone", "a")]);
        for (selector, expected) in [
            ("{}", true),
            ("{matchLabels: {zone: a}}", true),
            ("{matchLabels: {zone: b}}", false),
            ("{matchLabels: {other: a}}", false),
            ("{matchExpressions: [{key: zone, operator: In, values: [a, b]}]}", true),
            ("{matchExpressions: [{key: zone, operator: NotIn, values: [a]}]}", false),
            ("{matchExpressions: [{key: other, operator: NotIn, values: [a]}]}", true),
            ("{matchExpressions: [{key: zone, operator: Exists}]}", true),
            ("{matchExpressions: [{key: other, operator: DoesNotExist}]}", true),
            ("{matchLabels: {zone: a}, matchExpressions: [{key: zone, operator: DoesNotExist}]}", false),
        ] {
            let parsed: Selector = serde_yaml::from_str(selector).unwrap();
            assert_eq!(parsed.matches(|key| labels.get(key).copied()), expected, "{selector}");
        }
        assert!(serde_yaml::from_str::<Selector>("{matchExpressions: [{key: a, operator: in}]}").is_err());
    }

    #[test]
    fn a_selector_asks_no_more_than_one_that_repeats_all_it_asks() {
        let parsed = |text| serde_yaml::from_str::<Selector>(text).unwrap();
        let narrow = parsed("{matchLabels: {zone: a, room: lab}, matchExpressions: [{key: gpu, operator: Exists}]}");
        for (wide, expected) in [
            ("{}", true),
            ("{matchLabels: {zone: a}}", true),
            ("{matchLabels: {zone: a}, matchExpressions: [{key: gpu, operator: Exists}]}", true),
            ("{matchLabels: {zone: b}}", false),
            ("{matchLabels: {rack: a}}", false),
            ("{matchExpressions: [{key: gpu, operator: DoesNotExist}]}", false),
        ] {
            assert_eq!(parsed(wide).asks_no_more_than(&narrow), expected, "{wide}");
        }
        assert!(!narrow.asks_no_more_than(&Selector::default()));
    }
}
