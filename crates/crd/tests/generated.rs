//! The CRDs describe every field, and are not too large.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use gpu_operator_crd::schema_revision::SCHEMA_REVISION;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The maximum size of a CRD. Client-side apply stores the object as JSON in an annotation, which is limited to this size.
const MAX_CRD_BYTES: usize = 256 * 1024;

#[test]
fn an_optional_field_keeps_its_description_and_lists_its_values() {
    let (_, policy) = gpu_operator_crd::crds().into_iter().next().expect("the policy");
    let policy = serde_json::to_value(&policy.spec.versions[0].schema).expect("JSON");
    let driver = "/openAPIV3Schema/properties/spec/properties/defaults/properties/driver/properties";
    let source = policy.pointer(&format!("{driver}/source/description")).and_then(Value::as_str);
    let source = source.expect("a description");
    assert!(source.starts_with("The source of the driver. Defaults to `Auto`."), "{source}");
    assert!(source.contains("\n- CloudInstaller: The installer of the node's cloud"), "{source}");
    let selector = policy.pointer("/openAPIV3Schema/properties/spec/properties/nodeSelector/description");
    let selector = selector.and_then(Value::as_str).expect("a description");
    assert!(selector.starts_with("Selects the nodes that the policy governs."), "{selector}");
}

#[test]
fn vocabularies_of_objects_that_a_newer_version_writes_are_open() {
    let (_, node) = gpu_operator_crd::crds().remove(1);
    let json = serde_json::to_value(&node.spec.versions[0].schema).expect("JSON");
    assert!(!json.to_string().contains("\"enum\":"), "an enumeration in the schema of GpuNodes");
    let action =
        "/openAPIV3Schema/properties/status/properties/report/properties/gpus/items/properties/health/properties";
    let kind = json.pointer(&format!("{action}/causes/items/properties/kind/description"));
    let kind = kind.and_then(Value::as_str).expect("a description");
    assert!(kind.contains("Known values: Xid, GpuLost, "), "{kind}");
}

#[test]
fn kubectl_explains_every_field() {
    for (file, crd) in gpu_operator_crd::crds() {
        let json = serde_json::to_value(&crd.spec.versions[0].schema).expect("JSON");
        let mut unexplained = Vec::new();
        visit(&json["openAPIV3Schema"], "", &[], &mut |path, schema| {
            let is_field = !path.ends_with("[]");
            let is_explained = schema["description"].as_str().is_some_and(|text| !text.trim().is_empty());
            unexplained.extend((is_field && !is_explained).then(|| path.to_owned()));
        });
        assert_eq!(unexplained, Vec::<String>::new(), "{file}");
    }
}

#[test]
fn the_docs_list_the_columns_that_kubectl_prints() {
    let page = include_str!("../../../docs/concepts/readiness.md");
    for (_, crd) in gpu_operator_crd::crds() {
        let command = format!("```sh\nkubectl get {}\n```\n\n| Column | Meaning |\n|---|---|\n", crd.spec.names.plural);
        let (_, table) = page.split_once(&command).unwrap_or_else(|| panic!("the page lacks {command}"));
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        let listed: Vec<_> = rows.filter_map(|row| Some(row.split('|').nth(1)?.trim().to_owned())).collect();
        let columns = crd.spec.versions[0].additional_printer_columns.iter().flatten();
        // Every kind has the age of its objects, and `-o wide` is described in the text.
        let columns = columns.filter(|column| column.priority.unwrap_or_default() == 0 && column.name != "Age");
        assert_eq!(listed, columns.map(|column| column.name.to_uppercase()).collect::<Vec<_>>());
    }
}

#[test]
fn no_crd_is_too_large() {
    for (file, crd) in gpu_operator_crd::crds() {
        let size = serde_json::to_string(&crd).expect("JSON").len();
        assert!(size < MAX_CRD_BYTES, "{file} has {size} bytes");
    }
}

#[test]
fn every_string_list_and_map_is_bounded() {
    // Kubernetes' own types (env, conditions) are bounded by the API server's request size. All other types have explicit
    // bounds, so that the cost of CEL rules can be estimated.
    let foreign = ["env", "conditions"];
    for (file, crd) in gpu_operator_crd::crds() {
        let json = serde_json::to_value(&crd.spec.versions[0].schema).expect("JSON");
        let mut unbounded = Vec::new();
        visit(&json["openAPIV3Schema"], "", &foreign, &mut |path, schema| {
            let has = |key: &str| schema.get(key).is_some();
            let is_unbounded = match schema["type"].as_str() {
                Some("string") => !has("maxLength") && !has("enum") && !has("format"),
                Some("array") => !has("maxItems"),
                _ => false,
            };
            unbounded.extend(is_unbounded.then(|| path.to_owned()));
        });
        assert_eq!(unbounded, Vec::<String>::new(), "{file}");
    }
}

/// The digest of the schemas of each revision. A change of the schemas needs a new [`SCHEMA_REVISION`], and a new row here: operators
/// recognize CRDs of other versions by it.
const DIGESTS: &[(u32, &str)] =
    &[(1, "97eb527fb866c238"), (2, "a96cff391cb08a35"), (3, "c5668f23353ca153"), (4, "f82fc5b1c4a08a53")];

#[test]
fn other_schemas_have_another_revision() {
    let schemas: Vec<Value> = gpu_operator_crd::crds()
        .into_iter()
        .map(|(_, crd)| {
            let mut schema = serde_json::to_value(&crd.spec.versions[0].schema).expect("JSON");
            remove_descriptions(&mut schema);
            schema
        })
        .collect();
    let digest = Sha256::digest(serde_json::to_vec(&schemas).expect("JSON"));
    let digest = format!("{:016x}", u64::from_be_bytes(*digest.first_chunk().expect("a digest")));
    assert_eq!(DIGESTS.last(), Some(&(SCHEMA_REVISION, digest.as_str())), "increase SCHEMA_REVISION, and add a row");
    assert!(DIGESTS.is_sorted_by(|(earlier, _), (later, _)| earlier < later), "each revision has one row");
}

/// Removes the descriptions of fields, which change nothing of what is stored. A field of that name has a schema, and no string.
fn remove_descriptions(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|key, value| key != "description" || !value.is_string());
            fields.values_mut().for_each(remove_descriptions);
        }
        Value::Array(list) => list.iter_mut().for_each(remove_descriptions),
        _ => {}
    }
}

/// Calls a function with the path and the schema of every field and list item, except for these fields.
fn visit(schema: &Value, path: &str, except: &[&str], found: &mut impl FnMut(&str, &Value)) {
    found(path, schema);
    if let Some(items) = schema.get("items") {
        visit(items, &format!("{path}[]"), except, found);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if !except.contains(&name.as_str()) {
            visit(property, &format!("{path}.{name}"), except, found);
        }
    }
}
