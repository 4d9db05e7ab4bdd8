//! The parts of objects that a support bundle contains, where it does not contain all of them.

use gpu_operator_crd::keys;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// Returns the part of a Node that is in the bundle: neither its addresses, its images nor other programs' annotations.
pub fn node(node: &Value) -> Value {
    let meta = &node["metadata"];
    let mut metadata = picked(meta, &["name", "uid", "creationTimestamp", "deletionTimestamp", "labels"]);
    let own = meta["annotations"].as_object().into_iter().flatten();
    let own = own.filter(|(key, _)| key.starts_with(keys::PREFIX));
    let own: Map<_, _> = own.map(|(key, value)| (key.clone(), value.clone())).collect();
    metadata.insert("annotations".to_owned(), own.into());
    let spec = picked(&node["spec"], &["taints", "unschedulable"]);
    let status = picked(&node["status"], &["conditions", "nodeInfo", "allocatable", "capacity"]);
    json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status})
}

/// Returns the part of a CustomResourceDefinition that is in the bundle: of the schema of each version only a checksum.
pub fn definition(definition: &Value) -> Value {
    let version = |version: &Value| {
        let mut shown = picked(version, &["name", "served", "storage", "deprecated"]);
        shown.insert("schemaSha256".to_owned(), sha256(version["schema"].to_string().as_bytes()).into());
        Value::from(shown)
    };
    let versions: Vec<Value> = definition["spec"]["versions"].as_array().into_iter().flatten().map(version).collect();
    json!({
        "apiVersion": definition["apiVersion"],
        "kind": definition["kind"],
        "metadata": picked(&definition["metadata"], &["name", "uid", "creationTimestamp", "labels", "annotations"]),
        "spec": {"group": definition["spec"]["group"], "versions": versions},
        "status": picked(&definition["status"], &["conditions", "storedVersions"]),
    })
}

/// Returns a checksum in hexadecimal form.
pub fn sha256(content: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or_default();
    Sha256::digest(content).iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn picked(value: &Value, fields: &[&str]) -> Map<String, Value> {
    let of = value.as_object().into_iter().flatten();
    of.filter(|(key, _)| fields.contains(&key.as_str())).map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_only_what_support_needs() {
        let found = node(&json!({
            "metadata": {
                "name": "a",
                "annotations": {"gpu.nodestack.dev/cordon": "x", "example.com/b": "canary"},
                "managedFields": ["canary"],
            },
            "spec": {"providerID": "canary", "unschedulable": true},
            "status": {"addresses": ["canary"], "images": ["canary"], "capacity": {"nvidia.com/gpu": "8"}},
        }));
        let metadata = json!({"name": "a", "annotations": {"gpu.nodestack.dev/cordon": "x"}});
        let (spec, status) = (json!({"unschedulable": true}), json!({"capacity": {"nvidia.com/gpu": "8"}}));
        let shown = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status});
        assert_eq!(found, shown);
    }

    #[test]
    fn definitions_have_a_checksum_of_each_schema() {
        let of = |schema: &str| definition(&json!({"spec": {"versions": [{"name": "v1", "schema": schema}]}}));
        let (first, second) = (of("a"), of("b"));
        let checksum = |found: &Value| found["spec"]["versions"][0]["schemaSha256"].as_str().map(str::len);
        assert_eq!(checksum(&first), Some(64));
        assert_ne!(first, second);
    }
}
