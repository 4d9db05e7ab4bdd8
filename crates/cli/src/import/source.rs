//! An object of NVIDIA's operator, whose fields are taken out while they are translated. What is left is remarked, so no field that is
//! set is dropped silently.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::fields::{self, FIELDS, Outcome};

/// Fields that are set, and what the policy does not have of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// The kind and name of the object.
    pub object: String,
    pub fields: Vec<String>,
    pub text: String,
}

#[derive(Debug)]
pub struct Source {
    pub object: String,
    fields: Value,
    /// What to write for a field that the table lacks.
    unknown: &'static str,
    remarks: Vec<Remark>,
}

const UNKNOWN: &str =
    "This field is not known to this version of the command. Look it up in the documentation of NVIDIA's operator.";

impl Source {
    pub fn new(object: String, fields: Value) -> Self {
        Self { object, fields, unknown: UNKNOWN, remarks: Vec::new() }
    }

    /// Returns a source whose fields are not in the table.
    pub fn of_config(object: String, fields: Value, unknown: &'static str) -> Self {
        Self { unknown, ..Self::new(object, fields) }
    }

    fn at(&self, path: &str) -> &Value {
        path.split('.').fold(&self.fields, |value, name| &value[name])
    }

    /// Returns the text at a path without taking it.
    pub fn named(&self, path: &str) -> Option<String> {
        self.at(path).as_str().filter(|name| !name.is_empty()).map(str::to_owned)
    }

    pub fn has(&self, path: &str) -> bool {
        !is_unset(self.at(path))
    }

    /// Takes the value at a path, if it is set.
    pub fn take(&mut self, path: &str) -> Option<Value> {
        let (folder, name) = path.rsplit_once('.').unwrap_or(("", path));
        let mut parent = &mut self.fields;
        for part in folder.split('.').filter(|part| !part.is_empty()) {
            parent = parent.get_mut(part)?;
        }
        let value = parent.as_object_mut()?.remove(name)?;
        (!is_unset(&value)).then_some(value)
    }

    /// Takes the value at a path if it is of the type; otherwise it stays, and is remarked.
    pub fn typed<T: DeserializeOwned>(&mut self, path: &str) -> Option<T> {
        let value = serde_json::from_value(self.at(path).clone()).ok().filter(|_| self.has(path))?;
        self.take(path);
        Some(value)
    }

    /// Takes a text. Values of a chart may have a number in its place.
    pub fn text(&mut self, path: &str) -> Option<String> {
        if self.at(path).is_number() {
            return self.take(path).map(|number| number.to_string());
        }
        self.typed(path)
    }

    /// Takes a switch.
    pub fn switch(&mut self, path: &str) -> Option<bool> {
        self.typed(path)
    }

    /// Returns a path for a remark on another object.
    pub fn shown(&self, path: &str) -> String {
        match shown(&self.object, path) {
            own if own == path => path.to_owned(),
            own => format!("{} {own}", self.object),
        }
    }

    /// Returns whether a component is switched off.
    pub fn is_off(&self, component: &str) -> bool {
        self.at(component)["enabled"] == false
    }

    pub fn remark(&mut self, paths: &[&str], text: impl Into<String>) {
        let fields = paths.iter().map(|&path| path.to_owned()).collect();
        self.remarks.push(Remark { object: self.object.clone(), fields, text: text.into() });
    }

    /// Returns the remarks, also about what is left.
    pub fn remarks(mut self) -> Vec<Remark> {
        let mut left = Vec::new();
        leaves("", &self.fields, &mut left);
        let mut grouped: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for path in left.into_iter().filter(|(path, value)| !fields::is_default(path, value)).map(|(path, _)| path) {
            let found = fields::position(&path).filter(|_| self.unknown == UNKNOWN);
            grouped.entry(found.unwrap_or(FIELDS.len())).or_default().push(path);
        }
        for (index, fields) in grouped {
            let text = match FIELDS.get(index).map(|field| &field.outcome) {
                Some(Outcome::NotServed(text)) => (*text).to_owned(),
                Some(Outcome::Becomes(text)) => format!("This value cannot be translated. In a policy: {text}."),
                None => self.unknown.to_owned(),
            };
            self.remarks.push(Remark { object: self.object.clone(), fields, text: text.replace('`', "") });
        }
        for field in self.remarks.iter_mut().flat_map(|remark| &mut remark.fields) {
            *field = shown(&self.object, field).to_owned();
        }
        self.remarks
    }
}

/// Returns the path as the object has it: an `NVIDIADriver` has the fields of `driver` at its top.
fn shown<'p>(object: &str, path: &'p str) -> &'p str {
    path.strip_prefix("driver.").filter(|_| object.starts_with("NVIDIADriver ")).unwrap_or(path)
}

fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_unset),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn leaves<'v>(path: &str, value: &'v Value, found: &mut Vec<(String, &'v Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(&if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, value, found);
            }
        }
        _ if is_unset(value) => {}
        _ => found.push((path.to_owned(), value)),
    }
}
