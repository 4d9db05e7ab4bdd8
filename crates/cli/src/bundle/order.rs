//! The order of nodes in a support bundle: those that need attention come first.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Returns the names of all nodes: those that policies list in `status.attention`, then those with a GPU that are not ready, then the
/// others with a GPU, then all others; each by name.
pub fn order(policies: &[Value], gpu_nodes: &BTreeMap<String, Value>, nodes: &BTreeMap<String, Value>) -> Vec<String> {
    let attention = policies.iter().flat_map(|policy| policy["status"]["attention"].as_array().into_iter().flatten());
    let attention: BTreeSet<&str> = attention.filter_map(|entry| entry["node"].as_str()).collect();
    let names: BTreeSet<&String> = gpu_nodes.keys().chain(nodes.keys()).collect();
    let rank = |name: &str| {
        let gpu_node = gpu_nodes.get(name);
        let is_ready = gpu_node.is_none_or(|gpu_node| gpu_node["status"]["phase"] == "Ready")
            && nodes.get(name).is_none_or(is_node_ready);
        match (attention.contains(name), gpu_node.is_some(), is_ready) {
            (true, _, _) => 0,
            (false, true, false) => 1,
            (false, true, true) => 2,
            (false, false, _) => 3,
        }
    };
    let mut ordered: Vec<String> = names.into_iter().cloned().collect();
    ordered.sort_by_key(|name| rank(name));
    ordered
}

fn is_node_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
    ready.is_some_and(|condition| condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_that_need_attention_come_first() {
        let policy = json!({"status": {"attention": [{"node": "z"}, {"node": "gone"}]}});
        let phase = |phase: &str| json!({"status": {"phase": phase}});
        let of = |pairs: Vec<(&str, Value)>| pairs.into_iter().map(|(name, of)| (name.to_owned(), of)).collect();
        let gpu_nodes = of(vec![("a", phase("Ready")), ("b", phase("Failed")), ("c", phase("Ready"))]);
        let ready = |status| json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        let nodes =
            of(vec![("0", ready("False")), ("c", ready("Unknown")), ("z", ready("True")), ("a", ready("True"))]);
        assert_eq!(order(&[policy], &gpu_nodes, &nodes), ["z", "b", "c", "a", "0"]);
        assert_eq!(order(&[], &BTreeMap::new(), &nodes), ["0", "a", "c", "z"]);
    }
}
