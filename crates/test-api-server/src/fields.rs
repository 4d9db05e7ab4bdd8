//! Objects and the managers of their fields: server-side apply. Lists are atomic, except conditions, which are identified by type.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The segments of a field's path, as `managedFields` contains them.
type Path = Vec<String>;

/// The metadata that managers own.
const METADATA: [&str; 4] = ["annotations", "finalizers", "labels", "ownerReferences"];

/// A manager of fields: its name, the operation and the subresource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Manager {
    pub name: String,
    pub operation: &'static str,
    pub subresource: &'static str,
}

/// The fields of a manager, and when they last changed.
#[derive(Clone, Debug, PartialEq)]
struct Fields {
    paths: BTreeSet<Path>,
    time: String,
}

/// A stored object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object {
    pub value: Value,
    managed: BTreeMap<Manager, Fields>,
}

impl From<Value> for Object {
    fn from(value: Value) -> Self {
        Self { value, managed: BTreeMap::new() }
    }
}

impl Object {
    pub fn apply(&mut self, manager: Manager, applied: &Value, force: bool, time: &str) -> Result<(), String> {
        let wanted = leaves(applied);
        let current = leaves(&self.value);
        let differs = |path: &Path| current.get(path) != wanted.get(path);
        for (other, fields) in self.managed.iter_mut().filter(|(other, _)| **other != manager) {
            let taken: Vec<_> =
                fields.paths.iter().filter(|path| wanted.contains_key(*path) && differs(path)).collect();
            if let Some(path) = taken.first().filter(|_| !force) {
                return Err(format!("conflict with {:?}: {}", other.name, path.join(".")));
            }
            fields.paths = fields.paths.iter().filter(|path| !taken.contains(path)).cloned().collect();
        }
        let paths: BTreeSet<Path> = wanted.into_keys().collect();
        let before = self.managed.remove(&manager);
        for path in before.iter().flat_map(|before| before.paths.difference(&paths)) {
            if !self.managed.values().any(|fields| fields.paths.contains(path)) {
                remove(&mut self.value, path);
            }
        }
        merge(&mut self.value, applied);
        let fields = before.filter(|before| before.paths == paths).unwrap_or(Fields { paths, time: time.to_owned() });
        self.managed.insert(manager, fields);
        self.managed.retain(|_, fields| !fields.paths.is_empty());
        Ok(())
    }

    /// Changes an object. What has changed belongs to this manager alone.
    pub fn update(&mut self, manager: Manager, change: impl FnOnce(&mut Value), time: &str) {
        let before = self.value.clone();
        change(&mut self.value);
        if self.value == before {
            return;
        }
        let before = leaves(&before);
        let after = leaves(&self.value);
        let own: BTreeSet<Path> = after.keys().filter(|path| before.get(*path) != after.get(*path)).cloned().collect();
        for fields in self.managed.values_mut() {
            fields.paths.retain(|path| after.contains_key(path) && !own.contains(path));
        }
        if !own.is_empty() {
            let kept = self.managed.remove(&manager).map(|fields| fields.paths).unwrap_or_default();
            self.managed
                .insert(manager, Fields { paths: own.into_iter().chain(kept).collect(), time: time.to_owned() });
        }
        self.managed.retain(|_, fields| !fields.paths.is_empty());
    }

    /// Returns `metadata.managedFields`.
    pub fn managed_fields(&self) -> Value {
        let entry = |(Manager { name, operation, subresource }, Fields { paths, time }): (&Manager, &Fields)| {
            let mut tree = json!({});
            for path in paths {
                path.iter().fold(&mut tree, |at, segment| {
                    at.as_object_mut().expect("a tree").entry(segment).or_insert_with(|| json!({}))
                });
            }
            json!({
                "manager": name, "operation": operation, "subresource": subresource, "time": time,
                "fieldsType": "FieldsV1", "fieldsV1": tree,
            })
        };
        self.managed.iter().map(entry).collect()
    }
}

/// Returns the fields of an object that managers own, with their values.
fn leaves(object: &Value) -> BTreeMap<Path, Value> {
    fn collect(value: &Value, path: &Path, found: &mut BTreeMap<Path, Value>) {
        let children = children(value);
        if children.is_empty() && !value.is_null() {
            found.insert(path.clone(), value.clone());
        }
        for (segment, child) in children {
            collect(child, &path.iter().cloned().chain([segment]).collect(), found);
        }
    }
    let mut found = BTreeMap::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        match key.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => {
                for key in METADATA.into_iter().filter(|key| !value[key].is_null()) {
                    collect(&value[key], &vec!["f:metadata".to_owned(), format!("f:{key}")], &mut found);
                }
            }
            key => collect(value, &vec![format!("f:{key}")], &mut found),
        }
    }
    found
}

fn children(value: &Value) -> Vec<(String, &Value)> {
    match value {
        Value::Object(map) => map.iter().map(|(key, value)| (format!("f:{key}"), value)).collect(),
        Value::Array(items) => {
            let keyed: Option<Vec<_>> = items.iter().map(|item| Some((condition(item)?, item))).collect();
            keyed.unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Returns the segment of a condition.
fn condition(item: &Value) -> Option<String> {
    let kind = item.get("type")?;
    Some(format!("k:{{\"type\":{kind}}}"))
}

/// Sets the fields of `applied`.
pub fn merge(live: &mut Value, applied: &Value) {
    if live.is_null() && applied.is_object() {
        *live = json!({});
    }
    match (live, applied) {
        (Value::Object(live), Value::Object(applied)) => {
            for (key, value) in applied.iter().filter(|(_, value)| !value.is_null()) {
                merge(live.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(live), Value::Array(applied))
            if live.iter().chain(applied).all(|item| item.get("type").is_some()) =>
        {
            for item in applied {
                match live.iter_mut().find(|live| live["type"] == item["type"]) {
                    Some(live) => merge(live, item),
                    None => live.push(item.clone()),
                }
            }
        }
        (live, applied) => live.clone_from(applied),
    }
}

/// Removes a field, and what is empty without it. Returns whether nothing is left.
fn remove(live: &mut Value, path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else { return true };
    match live {
        Value::Object(map) => {
            let key = first.trim_start_matches("f:");
            if map.get_mut(key).is_some_and(|below| remove(below, rest)) {
                map.remove(key);
            }
            map.is_empty()
        }
        Value::Array(items) => {
            items.retain_mut(|item| {
                condition(item).as_ref() != Some(first) || !(rest == ["f:type"] || remove(item, rest))
            });
            items.is_empty()
        }
        _ => false,
    }
}
