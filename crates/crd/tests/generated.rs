//! What is committed in `config/crd/` is what the types generate, and the API server can take it.
#![allow(clippy::expect_used, reason = "tests")]

use std::{fs, path::Path};

/// What the API server takes of one object (etcd's limit is larger; a CRD must leave room for client-side apply).
const MAX_CRD_BYTES: usize = 256 * 1024;

#[test]
fn the_committed_files_are_what_crdgen_writes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/crd");
    for (file, crd) in gpu_operator_crd::crds() {
        let committed = fs::read_to_string(dir.join(file)).expect("a committed file");
        let generated = gpu_operator_crd::crd_yaml(&crd).expect("YAML");
        assert_eq!(committed, generated, "{file} drifted: run cargo run -p gpu-operator-crd --bin crdgen");
    }
    let files = fs::read_dir(&dir).expect("config/crd").count();
    assert_eq!(files, gpu_operator_crd::crds().len(), "config/crd holds generated files only");
}

#[test]
fn no_crd_is_too_large() {
    for (file, crd) in gpu_operator_crd::crds() {
        let size = gpu_operator_crd::crd_yaml(&crd).expect("YAML").len();
        assert!(size < MAX_CRD_BYTES, "{file} has {size} bytes");
    }
}

#[test]
fn every_string_list_and_map_of_ours_is_bounded() {
    // Kubernetes' own types (env, conditions) are bounded by the API server's
    // request size; everything that is ours names its bound, so that CEL's cost can be estimated.
    let foreign = ["env", "conditions"];
    for (file, crd) in gpu_operator_crd::crds() {
        let json = serde_json::to_value(&crd.spec.versions[0].schema).expect("JSON");
        let mut unbounded = Vec::new();
        visit(&json["openAPIV3Schema"], "", &foreign, &mut unbounded);
        assert_eq!(unbounded, Vec::<String>::new(), "{file}");
    }
}

fn visit(schema: &serde_json::Value, path: &str, foreign: &[&str], unbounded: &mut Vec<String>) {
    let has = |key: &str| schema.get(key).is_some();
    match schema["type"].as_str() {
        Some("string") if !has("maxLength") && !has("enum") && !has("format") => unbounded.push(path.to_owned()),
        Some("array") if !has("maxItems") => unbounded.push(path.to_owned()),
        _ => {}
    }
    if let Some(items) = schema.get("items") {
        visit(items, &format!("{path}[]"), foreign, unbounded);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if !foreign.contains(&name.as_str()) {
            visit(property, &format!("{path}.{name}"), foreign, unbounded);
        }
    }
}
