//! The structural schemas of CRDs, as they are changed after their generation.
//!
//! The conversion into a structural schema replaces the description of an optional field by that of its type, and drops the
//! descriptions of an enumeration's values. Both are restored, so that `kubectl explain` prints them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use schemars::{Schema, transform::transform_subschemas};
use serde_json::Value;

/// Returns the schemas of a field of the objects, such as `spec`, one for each version.
pub fn field<'c>(crd: &'c mut CustomResourceDefinition, name: &str) -> impl Iterator<Item = &'c mut JSONSchemaProps> {
    let schemas =
        crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut());
    schemas.filter_map(move |schema| schema.properties.as_mut()?.get_mut(name))
}

/// Enumerations with more values than this are not described value by value, to limit the size of the CRD.
const MAX_VALUES: usize = 10;

/// Moves the descriptions in the schema of a type to where a structural schema keeps them: the description of an optional
/// field to its type, those of an enumeration's values to the description of the enumeration.
pub fn keep(schema: &mut Schema) {
    if let Some(text) = schema.get("description").and_then(Value::as_str).map(unwrapped) {
        if let Some(of_type) = schema.pointer_mut("/anyOf/0").and_then(Value::as_object_mut) {
            of_type.insert("description".into(), text.as_str().into());
        }
        let text = [text].into_iter().chain(values(schema)).collect::<Vec<_>>().join("\n\n");
        schema.insert("description".into(), text.into());
    }
    transform_subschemas(&mut keep, schema);
}

/// Returns a list of the values of an enumeration.
fn values(schema: &Schema) -> Option<String> {
    let values = schema.get("oneOf")?.as_array().filter(|values| values.len() <= MAX_VALUES)?;
    let described = values.iter().filter_map(|value| {
        let name = value["const"].as_str()?;
        Some(format!("- {name}: {}", value["description"].as_str()?.replace('\n', " ")))
    });
    let described: Vec<_> = described.collect();
    (!described.is_empty()).then(|| described.join("\n"))
}

/// Joins the lines of each paragraph: `kubectl explain` wraps lines itself, and each line costs its indentation in the CRD.
fn unwrapped(text: &str) -> String {
    text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}
