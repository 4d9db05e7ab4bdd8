//! Selectors of nodes and pods, in the notations that NVIDIA's operator reads.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    policy::Selector,
    selector::{Operator, Requirement},
};
use k8s_openapi::api::core::v1::NodeSelectorTerm;

/// Parses a selector as kubectl's `--selector` writes it.
pub fn parse(text: &str) -> Option<Selector> {
    let mut selector = Selector::default();
    let mut rest = text.trim();
    while !rest.is_empty() {
        // Only the values of a set contain commas within a requirement.
        let set = rest.find('(').filter(|open| !rest[..*open].contains(','));
        let end = match set {
            Some(open) => open + rest[open..].find(')')? + 1,
            None => rest.find(',').unwrap_or(rest.len()),
        };
        add(&mut selector, rest[..end].trim())?;
        rest = rest[end..].trim_start().trim_start_matches(',').trim_start();
    }
    Some(selector)
}

fn add(selector: &mut Selector, text: &str) -> Option<()> {
    let mut require = |key: &str, operator, values| {
        let key = key.trim();
        if key.is_empty() || key.contains(char::is_whitespace) {
            return None;
        }
        selector.match_expressions.push(Requirement { key: key.to_owned(), operator, values });
        Some(())
    };
    if let Some((head, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        return match head.split_whitespace().collect::<Vec<_>>()[..] {
            [key, "in"] => require(key, Operator::In, values),
            [key, "notin"] => require(key, Operator::NotIn, values),
            _ => None,
        };
    }
    if let Some((key, value)) = text.split_once("!=") {
        return require(key, Operator::NotIn, vec![value.trim().to_owned()]);
    }
    if let Some((key, value)) = text.split_once('=') {
        let value = value.trim_start_matches('=').trim();
        selector.match_labels.insert(key.trim().to_owned(), value.to_owned());
        return Some(());
    }
    match text.strip_prefix('!') {
        Some(key) => require(key, Operator::DoesNotExist, Vec::new()),
        None => require(text, Operator::Exists, Vec::new()),
    }
}

/// Returns the selector of nodes with these labels that fit a term of a node affinity, or `None` if a pool cannot express it.
pub fn of_term(labels: &BTreeMap<String, String>, term: &NodeSelectorTerm) -> Option<Selector> {
    let mut selector = Selector { match_labels: labels.clone(), ..Selector::default() };
    if term.match_fields.as_ref().is_some_and(|fields| !fields.is_empty()) {
        return None;
    }
    for requirement in term.match_expressions.iter().flatten() {
        let operator = match requirement.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            _ => return None,
        };
        let values = requirement.values.clone().unwrap_or_default();
        selector.match_expressions.push(Requirement { key: requirement.key.clone(), operator, values });
    }
    Some(selector)
}
