//! The fields of a policy's spec, from the schema of the CRD: each with a spec without it and the specs that set it.

use serde_json::{Map, Value, json};

use super::table::{self, Row};

/// A field that holds a value itself.
pub struct Field {
    /// The names from the spec to the field; `[]` is the first element of a list, `{}` an entry of a map.
    pub path: Vec<String>,
    pub row: Row,
    /// A spec without the field, or with its first value if the field is required.
    pub base: Value,
    /// Specs that set it, and whether the value is the default.
    pub changes: Vec<(Value, bool)>,
}

/// Returns all fields of a spec, except those that are always rejected.
pub fn all(schema: &Value) -> Vec<Field> {
    let mut paths = vec![];
    collect(schema, &mut vec![], &mut paths);
    let rows = |path: Vec<String>| table::rows(&path).into_iter().map(move |row| (path.clone(), row));
    paths.into_iter().flat_map(rows).map(|(path, row)| field(schema, path, row)).collect()
}

fn collect(schema: &Value, path: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    let children = children(schema);
    if children.is_empty() {
        paths.push(path.clone());
    }
    for (name, child) in children {
        path.push(name.to_owned());
        collect(child, path, paths);
        path.pop();
    }
}

/// Returns the schemas inside a schema, by their part of the path.
fn children(schema: &Value) -> Vec<(&str, &Value)> {
    if let Some(properties) = schema["properties"].as_object() {
        return properties.iter().map(|(name, child)| (name.as_str(), child)).collect();
    }
    let parts = [("[]", &schema["items"]), ("{}", &schema["additionalProperties"])];
    parts.into_iter().filter(|(_, child)| child.is_object()).collect()
}

fn child<'s>(schema: &'s Value, name: &str) -> &'s Value {
    children(schema).into_iter().find(|(part, _)| *part == name).map_or(&Value::Null, |(_, child)| child)
}

fn is_required(schema: &Value, name: &str) -> bool {
    schema["required"].as_array().is_some_and(|required| required.iter().any(|required| required == name))
}

fn field(schema: &Value, path: Vec<String>, row: Row) -> Field {
    let leaf = path.iter().fold(schema, |schema, name| child(schema, name));
    let mut values = values(leaf, &row);
    // A list that must not be empty is as required as its element.
    let of_lists = path.iter().rev().take_while(|name| *name == "[]").count();
    let named = path.len() - of_lists - 1;
    let parent = path[..named].iter().fold(schema, |schema, name| child(schema, name));
    let first = (row.required || is_required(parent, &path[named])).then(|| values.remove(0));
    assert!(!values.is_empty(), "{}: the table needs a second value", path.join("."));
    let build = |value: Option<&Value>| {
        let mut spec = row.neighbours(&path);
        merge(&mut spec, object(schema, &path, value, &mut vec![]));
        spec
    };
    let changes = values.iter().map(|value| (build(Some(value)), is_default(leaf, value))).collect();
    Field { base: build(first.as_ref()), changes, row, path }
}

/// Returns a value of a schema: with the required fields, and along a path the fields that lead to a value.
fn object(schema: &Value, path: &[String], value: Option<&Value>, at: &mut Vec<String>) -> Value {
    let Some((name, rest)) = path.split_first() else {
        return value.cloned().unwrap_or_else(|| sample(schema, at));
    };
    at.push(name.clone());
    let ends = rest.iter().all(|name| name == "[]") && value.is_none();
    let inner = (!ends).then(|| object(child(schema, name), rest, value, at));
    at.pop();
    match name.as_str() {
        "[]" => json!([inner.expect("an element")]),
        "{}" => inner.map_or(json!({}), |inner| json!({table::key(at): inner})),
        _ => {
            let mut object = required(schema, at);
            object.extend(inner.map(|inner| (name.clone(), inner)));
            Value::Object(object)
        }
    }
}

/// Returns the required fields of an object.
fn required(schema: &Value, at: &mut Vec<String>) -> Map<String, Value> {
    let names: Vec<_> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut fields = Map::new();
    for name in names {
        at.push(name.to_owned());
        fields.insert(name.to_owned(), sample(child(schema, name), at));
        at.pop();
    }
    fields
}

/// Returns the first value of a required field.
fn sample(schema: &Value, at: &mut Vec<String>) -> Value {
    if schema["properties"].is_object() {
        return Value::Object(required(schema, at));
    }
    if schema["items"].is_object() {
        at.push("[]".to_owned());
        let element = sample(&schema["items"], at);
        at.pop();
        return json!([element]);
    }
    values(schema, &table::rows(at)[0]).swap_remove(0)
}

/// Returns the values of a field to try: those in the table, or by the type.
fn values(schema: &Value, row: &Row) -> Vec<Value> {
    if !row.values.is_empty() {
        return row.values.iter().map(|value| serde_yaml::from_str(value).expect("YAML")).collect();
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.clone();
    }
    match schema["type"].as_str() {
        Some("boolean") => vec![json!(true), json!(false)],
        Some("integer") => integers(schema),
        _ if schema["x-kubernetes-int-or-string"] == true => vec![json!(1), json!("2")],
        _ => vec![json!("value-a"), json!("value-b")],
    }
}

/// Returns two integers within the bounds, neither of which is the default.
fn integers(schema: &Value) -> Vec<Value> {
    // The CRD's bounds are floating-point numbers.
    #[allow(clippy::cast_possible_truncation, reason = "small numbers")]
    let least = schema["minimum"].as_f64().unwrap_or_default() as i64;
    (least..).map(Value::from).filter(|value| !is_default(schema, value)).take(2).collect()
}

/// Returns whether a value is the default according to the field's description.
fn is_default(schema: &Value, value: &Value) -> bool {
    let description = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
    let written = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    description.split("Defaults to ").skip(1).any(|default| {
        let rest = default.trim_start_matches('`').strip_prefix(&written);
        rest.is_some_and(|rest| rest.trim_start_matches('`').starts_with('.'))
    })
}

/// Adds the fields of a value that another one lacks.
pub(super) fn merge(into: &mut Value, other: Value) {
    match (into, other) {
        (Value::Object(into), Value::Object(other)) => {
            for (name, value) in other {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(other)) => {
            into.iter_mut().zip(other).for_each(|(into, other)| merge(into, other));
        }
        (into @ Value::Null, other) => *into = other,
        _ => {}
    }
}
