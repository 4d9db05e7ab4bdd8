//! Node selectors, validated on apply.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{Key, LabelValue, MatchLabels};

/// A node selector by labels. It has the syntax and meaning of Kubernetes' `LabelSelector`. Invalid keys and values are
/// rejected on apply, because a selector that cannot be evaluated would match nothing and remove the GPU stack from
/// every node.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    /// Labels that a selected object must have, with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "MatchLabels")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements, all of which it must meet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub match_expressions: Vec<Requirement>,
}

/// A requirement on a label.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
    "operators In and NotIn require values; Exists and DoesNotExist do not support values"
))]
pub struct Requirement {
    /// The label's key.
    #[schemars(with = "Key")]
    pub key: String,
    /// The relation between the label and `values`.
    pub operator: Operator,
    /// The values for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<LabelValue>", length(max = 40))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub values: Vec<String>,
}

/// The operator of a [`Requirement`].
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the operators of Kubernetes")]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Returns whether the selector matches a node. `value_of` returns the value of the node's label with a key.
    // `kube::core::Selector` matches only a `BTreeMap<String, String>`. The plan has interned labels, of which pools do not see
    // all: it would copy them for each node, policy and pool.
    pub fn matches<'l>(&self, value_of: impl Fn(&str) -> Option<&'l str>) -> bool {
        let meets = |Requirement { key, operator, values }: &Requirement| {
            let value = value_of(key);
            let is_listed = || value.is_some_and(|value| values.iter().any(|listed| listed == value));
            match operator {
                Operator::In => is_listed(),
                Operator::NotIn => !is_listed(),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        };
        self.match_labels.iter().all(|(key, value)| value_of(key) == Some(value))
            && self.match_expressions.iter().all(meets)
    }

    /// Returns the keys of the labels that it requires or excludes.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.match_labels.keys().chain(self.match_expressions.iter().map(|requirement| &requirement.key))
    }

    /// Returns whether every node that `other` matches is matched by this selector too, judged by a comparison of the
    /// requirements. Requirements that are equal but written differently are not recognized as equal.
    pub fn is_implied_by(&self, other: &Self) -> bool {
        self.match_labels.iter().all(|(key, value)| other.match_labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| other.match_expressions.contains(requirement))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_matches_as_in_kubernetes() {
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
    fn a_selector_asks_no_more_than_one_with_the_same_requirements() {
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
            assert_eq!(parsed(wide).is_implied_by(&narrow), expected, "{wide}");
        }
        assert!(!narrow.is_implied_by(&Selector::default()));
    }
}
