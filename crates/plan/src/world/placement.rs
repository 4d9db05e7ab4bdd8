//! Which nodes a pod may be placed on: node selector, required node affinity and tolerations.

use std::collections::BTreeMap;

use gpu_operator_crd::NodeName;
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Toleration};
use serde::Serialize;

use super::node::NodeFacts;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Placement {
    pub node_selector: BTreeMap<String, String>,
    /// Terms of which a node must meet one; `None` if there is no required affinity.
    pub terms: Option<Vec<NodeSelectorTerm>>,
    pub tolerations: Vec<Toleration>,
}

impl Placement {
    pub fn of(spec: &PodSpec) -> Self {
        let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        Self {
            node_selector: spec.node_selector.clone().unwrap_or_default(),
            terms: required.map(|required| required.node_selector_terms.clone()),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
        }
    }

    /// The approximate memory that it takes, in bytes.
    pub fn size(&self) -> usize {
        let text = |text: &str| size_of::<String>() + text.len();
        let requirement = |requirement: &NodeSelectorRequirement| {
            let values = requirement.values.iter().flatten().map(|value| text(value));
            size_of::<NodeSelectorRequirement>()
                + requirement.key.len()
                + requirement.operator.len()
                + values.sum::<usize>()
        };
        let term = |term: &NodeSelectorTerm| {
            let requirements = term.match_expressions.iter().chain(&term.match_fields).flatten();
            size_of::<NodeSelectorTerm>() + requirements.map(requirement).sum::<usize>()
        };
        let toleration = |toleration: &Toleration| {
            let Toleration { effect, key, operator, value, .. } = toleration;
            let texts = [effect, key, operator, value].into_iter().flatten();
            size_of::<Toleration>() + texts.map(String::len).sum::<usize>()
        };
        self.node_selector.iter().map(|(key, value)| text(key) + text(value)).sum::<usize>()
            + self.terms.iter().flatten().map(term).sum::<usize>()
            + self.tolerations.iter().map(toleration).sum::<usize>()
    }

    /// Whether selector and affinity match a node of this name, whose labels `value_of` returns by key.
    pub fn means<'l>(&self, name: &NodeName, value_of: impl Fn(&str) -> Option<&'l str>) -> bool {
        let met = |term: &NodeSelectorTerm| {
            let (labels, fields) = (term.match_expressions.as_deref(), term.match_fields.as_deref());
            let (labels, fields) = (labels.unwrap_or_default(), fields.unwrap_or_default());
            // An empty term matches no node.
            (!labels.is_empty() || !fields.is_empty())
                && labels.iter().all(|requirement| is_met(requirement, value_of(&requirement.key)))
                && fields.iter().all(|requirement| is_met(requirement, Some(name.as_str())))
        };
        self.node_selector.iter().all(|(key, value)| value_of(key) == Some(value))
            && self.terms.as_ref().is_none_or(|terms| terms.iter().any(met))
    }

    pub fn tolerates(&self, node: &NodeFacts) -> bool {
        let mut taints = node.taints.iter().filter(|taint| taint.keeps_pods_away());
        taints.all(|taint| self.tolerations.iter().any(|toleration| taint.tolerated_by(toleration)))
    }

    /// Returns the allowed values of a label, from the node selector or the only term of the affinity. `None` if unrestricted.
    pub fn wanted(&self, key: &str) -> Option<Vec<&str>> {
        if let Some(value) = self.node_selector.get(key) {
            return Some(vec![value]);
        }
        let [term] = self.terms.as_deref()? else { return None };
        let listed = term.match_expressions.iter().flatten();
        let mut listed = listed.filter(|requirement| requirement.key == key && requirement.operator == "In");
        Some(listed.find_map(|requirement| requirement.values.as_ref())?.iter().map(String::as_str).collect())
    }
}

fn is_met(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &str| values.iter().any(|listed| listed == value);
    let number = |text: &str| text.parse::<i64>().ok();
    let bound = || number(values.first()?);
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => value.is_none_or(|value| !listed(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => value.and_then(number).zip(bound()).is_some_and(|(value, bound)| value > bound),
        "Lt" => value.and_then(number).zip(bound()).is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}
