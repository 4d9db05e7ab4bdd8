//! Policies in a file, checked without a cluster as far as their schema reaches: fields, types and values, but not the rules
//! that relate fields to each other.

use std::{
    fs,
    io::{self, Read},
};

use gpu_operator_crd::{ClusterGpuPolicy, GROUP, VERSION, crds};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

const KIND: &str = "ClusterGpuPolicy";
/// How alike an unknown field and a known one are, from 0 to 1, if the unknown one is taken for a misspelling.
const ALIKE: f64 = 0.8;

#[derive(Debug, Error)]
pub enum FileError {
    #[error("cannot read {0}: {1}")]
    Read(String, #[source] io::Error),
    #[error("{0}: {1}")]
    Policy(String, #[source] PolicyFileError),
}

/// Returns the policies in a file; `-` is standard input.
pub fn read(filename: &str) -> Result<Vec<ClusterGpuPolicy>, FileError> {
    let read = if filename == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(filename)
    };
    policies(filename, &read.map_err(|error| FileError::Read(filename.to_owned(), error))?)
}

pub fn policies(filename: &str, text: &str) -> Result<Vec<ClusterGpuPolicy>, FileError> {
    parse(text).map_err(|error| FileError::Policy(filename.to_owned(), error))
}

#[derive(Debug, Error)]
pub enum PolicyFileError {
    #[error("document {0} is not valid YAML: {1}")]
    Yaml(usize, #[source] serde_yaml::Error),
    #[error(
        "the file contains no policy; write apiVersion: {GROUP}/{VERSION} and kind: {KIND}, with the policy's fields in spec"
    )]
    None,
    #[error("policy {name}: apiVersion {found} is not known; write apiVersion: {GROUP}/{VERSION}")]
    Version { name: String, found: String },
    #[error("policy {0}: {1}")]
    Invalid(String, String),
}

/// Returns the policies of a text: of its documents and of lists in them. Objects of other kinds are ignored.
pub fn parse(text: &str) -> Result<Vec<ClusterGpuPolicy>, PolicyFileError> {
    let mut policies = Vec::new();
    for (index, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
        let object = Value::deserialize(document).map_err(|error| PolicyFileError::Yaml(index + 1, error))?;
        let items =
            object["items"].as_array().filter(|_| object["kind"].as_str().is_some_and(|kind| kind.ends_with("List")));
        for object in items.map_or(std::slice::from_ref(&object), Vec::as_slice) {
            if object["kind"] == KIND {
                policies.push(policy(object)?);
            }
        }
    }
    if policies.is_empty() { Err(PolicyFileError::None) } else { Ok(policies) }
}

fn policy(object: &Value) -> Result<ClusterGpuPolicy, PolicyFileError> {
    let name = object["metadata"]["name"].as_str().unwrap_or("without a name").to_owned();
    let version = object["apiVersion"].as_str().unwrap_or("(none)");
    if version != format!("{GROUP}/{VERSION}") {
        return Err(PolicyFileError::Version { name, found: version.to_owned() });
    }
    if let Some(problem) = problem(&schema(), &object["spec"], "spec") {
        return Err(PolicyFileError::Invalid(name, problem));
    }
    let mut object = object.clone();
    // What a cluster has written into it does not matter here.
    object.as_object_mut().and_then(|fields| fields.remove("status"));
    serde_json::from_value(object).map_err(|error| PolicyFileError::Invalid(name, error.to_string()))
}

fn schema() -> Value {
    let crds = crds();
    let policies = crds.iter().map(|(_, crd)| &crd.spec).find(|spec| spec.names.kind == KIND);
    let schema = policies.and_then(|spec| spec.versions.first()?.schema.as_ref()?.open_api_v3_schema.as_ref());
    let spec = schema.and_then(|schema| schema.properties.as_ref()?.get("spec"));
    serde_json::to_value(spec).unwrap_or_default()
}

/// Returns the first value that its schema does not allow, and what to write instead.
fn problem(schema: &Value, value: &Value, path: &str) -> Option<String> {
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let allowed: Vec<String> = allowed.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        return Some(format!("{path}: {value} is not supported; write one of {}", allowed.join(", ")));
    }
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        _ => true,
    };
    if !fits {
        let article =
            if schema["type"].as_str().is_some_and(|of| of.starts_with(['a', 'i', 'o'])) { "an" } else { "a" };
        let wanted = schema["type"].as_str().unwrap_or_default();
        let quotes = if wanted == "string" && !value.is_null() { ", in quotes" } else { "" };
        return Some(format!("{path}: {value} is of another type; write {article} {wanted}{quotes}"));
    }
    match value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let path = format!("{path}.{name}");
            match schema["properties"].get(name).or_else(|| schema.get("additionalProperties")) {
                Some(schema) => problem(schema, value, &path),
                None if schema.get("properties").is_some() => Some(unknown(schema, name, &path)),
                None => None,
            }
        }),
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| problem(&schema["items"], item, &format!("{path}[{index}]")))
        }
        _ => None,
    }
}

fn unknown(schema: &Value, name: &str, path: &str) -> String {
    let known = schema["properties"].as_object().into_iter().flat_map(|properties| properties.keys());
    let scored = known.map(|known| (strsim::jaro_winkler(&known.to_lowercase(), &name.to_lowercase()), known));
    let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other)).filter(|(score, _)| *score >= ALIKE);
    match best {
        Some((_, known)) => format!("{path} is not a field of a policy; write {known}"),
        None => format!("{path} is not a field of a policy; remove it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_spec(spec: &str) -> String {
        format!("apiVersion: gpu.nodestack.dev/v1alpha1\nkind: ClusterGpuPolicy\nmetadata: {{name: p}}\nspec: {spec}\n")
    }

    #[test]
    fn policies_are_read_from_documents_and_lists_beside_others() {
        let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: gpu.nodestack.dev/v1alpha1, kind: ClusterGpuPolicy, metadata: {name: q}, spec: {}, status: {future: 1}}\n";
        let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n";
        let text = ["# nothing\n", &with_spec("{}"), namespace, list].join("---\n");
        let names: Vec<_> = parse(&text).unwrap().into_iter().filter_map(|policy| policy.metadata.name).collect();
        assert_eq!(names, ["p", "q"]);
    }

    #[test]
    fn an_error_names_the_field_and_what_to_write() {
        for (text, message) in [
            (String::new(), "the file contains no policy; write apiVersion"),
            ("kind: [".into(), "document 1 is not valid YAML"),
            (
                with_spec("{}").replace("v1alpha1", "v9"),
                "policy p: apiVersion gpu.nodestack.dev/v9 is not known; write apiVersion: gpu.nodestack.dev/v1alpha1",
            ),
            (
                with_spec("{defaults: {driver: {versoin: a}}}"),
                "policy p: spec.defaults.driver.versoin is not a field of a policy; write version",
            ),
            (with_spec("{pools: [{name: a, zzz: 1}]}"), "spec.pools[0].zzz is not a field of a policy; remove it"),
            (
                with_spec("{defaults: {driver: {version: 450.66}}}"),
                "spec.defaults.driver.version: 450.66 is of another type; write a string, in quotes",
            ),
            (with_spec("{pools: {name: a}}"), "write an array"),
            (with_spec("{defaults: null}"), "spec.defaults: null is of another type; write an object"),
            (
                with_spec("{defaults: {driver: {source: Contaner}}}"),
                "spec.defaults.driver.source: \"Contaner\" is not supported; write one of Auto, Container",
            ),
            (with_spec("{nodeLabels: [{}]}"), "policy p: missing field `key`"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
