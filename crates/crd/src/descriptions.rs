//! The descriptions of fields, as `kubectl explain` prints them.
//!
//! When a Rust type is converted into the structural schema of a CRD, the description of an optional field is replaced by
//! that of its type, and the descriptions of an enumeration's values are dropped. Both are restored here.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value;

use crate::structural::field;

/// Enumerations with more values than this are not described value by value, to limit the size of the CRD.
const MAX_VALUES: usize = 10;

/// Restores the descriptions below a property of an object, such as `spec`, from the type of that property.
pub fn restore<T: JsonSchema>(crd: &mut CustomResourceDefinition, property: &str) {
    let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    let complete = settings.into_generator().into_root_schema_for::<T>().to_value();
    for schema in field(crd, property) {
        describe(schema, &complete);
    }
}

fn describe(schema: &mut JSONSchemaProps, complete: &Value) {
    let of_type = not_null(complete);
    if let Some(description) = description(complete, of_type) {
        schema.description = Some(description);
    }
    for (name, property) in schema.properties.iter_mut().flatten() {
        describe(property, &of_type["properties"][name]);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        describe(items, &of_type["items"]);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        describe(values, &of_type["additionalProperties"]);
    }
}

/// Returns the schema of an optional value without the alternative `null`.
fn not_null(schema: &Value) -> &Value {
    match schema["anyOf"].as_array().map(Vec::as_slice) {
        Some([of_type, _null]) => of_type,
        _ => schema,
    }
}

/// Returns the description of a field, else that of its type, followed by a list of the values of an enumeration.
fn description(field: &Value, of_type: &Value) -> Option<String> {
    let text = field["description"].as_str().or_else(|| of_type["description"].as_str())?;
    let values = of_type["oneOf"].as_array().filter(|values| values.len() <= MAX_VALUES);
    let values = values.into_iter().flatten().filter_map(|value| {
        let name = value["enum"][0].as_str()?;
        Some(format!("- {name}: {}", value["description"].as_str()?.replace('\n', " ")))
    });
    let values: Vec<_> = values.collect();
    if values.is_empty() {
        return Some(unwrapped(text));
    }
    Some(format!("{}\n\n{}", unwrapped(text), values.join("\n")))
}

/// Joins the lines of each paragraph: `kubectl explain` wraps lines itself, and each line costs its indentation in the CRD.
fn unwrapped(text: &str) -> String {
    text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}
