//! What the API server stores, by path, with the history that watches are served from.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use axum::http::{Method, StatusCode};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    fields::{Manager, Object},
    request::Made,
};

/// Returns the time according to tokio's clock, in whole seconds.
pub fn clock() -> Timestamp {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let elapsed = Instant::now().saturating_duration_since(*START).as_secs();
    start + SignedDuration::from_secs(elapsed.cast_signed())
}

/// A rejection: status code, reason and message.
pub struct Refusal {
    pub code: StatusCode,
    /// The machine-readable reason.
    pub reason: String,
    pub message: String,
    /// Its details.
    pub causes: Vec<Value>,
}

impl Refusal {
    pub fn new(code: StatusCode, reason: &str, message: String) -> Self {
        Self { code, reason: reason.to_owned(), message, causes: Vec::new() }
    }
}

type Answer = Result<Value, Refusal>;

/// An object before and after a change.
struct Change {
    version: u64,
    path: String,
    before: Option<Arc<Value>>,
    after: Option<Arc<Value>>,
}

/// The objects, by the path of their URL.
#[derive(Default)]
pub struct Store {
    pub version: u64,
    /// The oldest version from which a watch can continue.
    oldest: u64,
    objects: BTreeMap<String, Object>,
    history: Vec<Change>,
}

impl Store {
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.objects.get(path).map(|object| &object.value)
    }

    pub fn objects(&self) -> impl Iterator<Item = &Value> {
        self.objects.values().map(|object| &object.value)
    }

    /// Returns the objects of a collection of one namespace or of all.
    pub fn all<'s>(&'s self, collection: &'s str) -> impl Iterator<Item = &'s Value> {
        self.objects.iter().filter(|(path, _)| belongs(path, collection)).map(|(_, object)| &object.value)
    }

    /// Returns the paths of the objects of a collection.
    pub fn paths(&self, collection: &str) -> Vec<String> {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.all(collection).map(|object| format!("{collection}/{}", name(object))).collect()
    }

    /// Stores an object as it is.
    pub fn put(&mut self, path: &str, value: Value) {
        self.version += 1;
        self.replace(path, Some(value.into()));
    }

    /// Lets no watch continue from a version so far.
    pub fn forget(&mut self) {
        self.version += 1;
        self.oldest = self.version;
    }

    /// Stores or removes an object, as the history shows it.
    fn replace(&mut self, path: &str, after: Option<Object>) {
        let shown = after.as_ref().map(|after| Arc::new(after.value.clone()));
        let before = match after {
            Some(object) => self.objects.insert(path.to_owned(), object),
            None => self.objects.remove(path),
        };
        let before = before.map(|before| Arc::new(before.value));
        self.history.push(Change { version: self.version, path: path.to_owned(), before, after: shown });
    }

    /// Returns the events of a watch after a version, or `None` if the history does not go back that far. A watch without a version
    /// begins with the existing objects.
    pub fn since(&self, version: Option<u64>, made: &Made) -> Option<Vec<(&'static str, Value)>> {
        let Some(version) = version else {
            let present = self.all(&made.path).filter(|object| made.selects(object));
            return Some(present.map(|object| ("ADDED", object.clone())).collect());
        };
        let is_new = |change: &&Change| change.version > version && belongs(&change.path, &made.path);
        let event = |change: &Change| {
            let selected = |object: &Option<Arc<Value>>| object.clone().filter(|object| made.selects(object));
            match (selected(&change.before), selected(&change.after)) {
                (None, Some(after)) => Some(("ADDED", (*after).clone())),
                (Some(_), Some(after)) => Some(("MODIFIED", (*after).clone())),
                (Some(before), None) => {
                    let mut last = (*before).clone();
                    last["metadata"]["resourceVersion"] = change.version.to_string().into();
                    Some(("DELETED", last))
                }
                (None, None) => None,
            }
        };
        let from = self.history.partition_point(|change| change.version <= version);
        (version >= self.oldest).then(|| self.history[from..].iter().filter(is_new).filter_map(event).collect())
    }

    /// Answers a request that is no watch.
    pub fn answer(&mut self, made: &Made) -> Answer {
        match made.method {
            Method::GET if made.names_collection() => {
                let number = |name| made.number(name).and_then(|number| usize::try_from(number).ok());
                let (first, limit) = (number("continue").unwrap_or_default(), number("limit").unwrap_or(usize::MAX));
                let mut rest = self.all(&made.path).filter(|object| made.selects(object)).skip(first);
                let items: Vec<_> = rest.by_ref().take(limit).collect();
                let next = rest.next().map(|_| (first + limit).to_string());
                let metadata = json!({"resourceVersion": self.version.to_string(), "continue": next});
                Ok(json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}))
            }
            Method::GET => self.get(&made.path).cloned().ok_or_else(|| missing(made)),
            Method::POST if made.subresource == "eviction" => self.evict(made),
            Method::POST => self.create(made),
            Method::DELETE => self.delete(made),
            _ => self.patch(made),
        }
    }

    fn create(&mut self, made: &Made) -> Answer {
        let path = format!("{}/{}", made.path, made.body["metadata"]["name"].as_str().unwrap_or_default());
        if self.objects.contains_key(&path) {
            return Err(Refusal::new(StatusCode::CONFLICT, "AlreadyExists", path));
        }
        Ok(self.write(made.manager("Update"), &path, |object| object.clone_from(&made.body)))
    }

    /// Evicts a pod, unless the PodDisruptionBudgets that select it by their labels forbid that.
    fn evict(&mut self, made: &Made) -> Answer {
        let pod = self.objects.get(&made.path).cloned().ok_or_else(|| missing(made))?;
        self.check(made, &made.body["deleteOptions"]["preconditions"])?;
        let namespace = made.path.split('/').nth(4).unwrap_or_default();
        let labels = &pod.value["metadata"]["labels"];
        let selects = |budget: &&Value| {
            let wanted = budget["spec"]["selector"]["matchLabels"].as_object();
            wanted.into_iter().flatten().all(|(key, value)| labels[key] == *value)
        };
        let budgets = format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets");
        let budgets: Vec<_> = self.all(&budgets).filter(selects).cloned().collect();
        if budgets.len() > 1 {
            let message =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message.to_owned()));
        }
        if let Some(budget) = budgets.first().filter(|budget| budget["status"]["disruptionsAllowed"] == 0) {
            let message = "Cannot evict pod as it would violate the pod's disruption budget.".to_owned();
            let name = budget["metadata"]["name"].as_str().unwrap_or_default();
            let cause = format!("The disruption budget {name} needs 1 healthy pods and has 1 currently");
            let causes = vec![json!({"reason": "DisruptionBudget", "message": cause})];
            return Err(Refusal { causes, ..Refusal::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message) });
        }
        if !made.query.contains_key("dryRun") {
            self.remove(&made.path, pod);
        }
        Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    fn delete(&mut self, made: &Made) -> Answer {
        if made.names_collection() {
            let belongs =
                |(path, object): &(&String, &Object)| belongs(path, &made.path) && made.selects(&object.value);
            let found = self.objects.iter().filter(belongs).map(|(path, object)| (path.clone(), object.clone()));
            for (path, object) in found.collect::<Vec<_>>() {
                self.remove(&path, object);
            }
            return Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}));
        }
        let object = self.objects.get(&made.path).cloned().ok_or_else(|| missing(made))?;
        self.check(made, &made.body["preconditions"])?;
        self.remove(&made.path, object);
        Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    fn patch(&mut self, made: &Made) -> Answer {
        self.check(made, &made.body["metadata"])?;
        let object = self.objects.get(&made.path).cloned();
        let applies = made.is_apply();
        if object.is_none() && (!applies || !made.subresource.is_empty()) {
            return Err(missing(made));
        }
        let mut object = object.unwrap_or_default();
        let mut body = made.body.clone();
        match (body.as_object_mut(), made.subresource) {
            (Some(body), "status") => body.retain(|key, _| key == "status"),
            (Some(body), _) => drop(body.remove("status")),
            (None, _) => {}
        }
        let time = clock().to_string();
        if applies {
            let force = made.query.get("force").is_some_and(|force| force == "true");
            let result = object.apply(made.manager("Apply"), &body, force, &time);
            result.map_err(|conflict| Refusal::new(StatusCode::CONFLICT, "Conflict", conflict))?;
        } else {
            let change = |value: &mut Value| match serde_json::from_value::<json_patch::Patch>(body.clone()) {
                Ok(patch) => json_patch::patch(value, &patch).expect("a valid patch"),
                Err(_) => json_patch::merge(value, &body),
            };
            object.update(made.manager("Update"), change, &time);
        }
        Ok(self.commit(&made.path, object))
    }

    /// Checks the preconditions of a write.
    fn check(&self, made: &Made, expected: &Value) -> Result<(), Refusal> {
        let present = self.get(&made.path).map(|object| &object["metadata"]);
        for key in ["uid", "resourceVersion"] {
            if expected[key].is_string() && present.is_none_or(|present| present[key] != expected[key]) {
                return Err(Refusal::new(StatusCode::CONFLICT, "Conflict", format!("{key} of {}", made.path)));
            }
        }
        Ok(())
    }

    /// Changes an object or creates it, and returns it.
    pub fn write(&mut self, manager: Manager, path: &str, change: impl FnOnce(&mut Value)) -> Value {
        let mut object = self.objects.get(path).cloned().unwrap_or_default();
        object.update(manager, change, &clock().to_string());
        self.commit(path, object)
    }

    /// Removes an object, or marks it for deletion if it has finalizers.
    pub fn remove(&mut self, path: &str, mut object: Object) {
        object.value["metadata"]["deletionTimestamp"] = clock().to_string().into();
        self.commit(path, object);
    }

    /// Stores an object that differs from the stored one with a new version.
    fn commit(&mut self, path: &str, mut object: Object) -> Value {
        let before = self.objects.get(path);
        if before == Some(&object) {
            return object.value;
        }
        self.version += 1;
        let spec = before.map(|before| &before.value["spec"]);
        let generation = before.and_then(|before| before.value["metadata"]["generation"].as_i64()).unwrap_or_default();
        let generation = generation + i64::from(spec != Some(&object.value["spec"]));
        let managed = object.managed_fields();
        let meta = &mut object.value["metadata"];
        meta["name"] = path.rsplit('/').next().into();
        if let Some((_, rest)) = path.split_once("/namespaces/") {
            meta["namespace"] = rest.split('/').next().into();
        }
        if meta["uid"].is_null() {
            meta["uid"] = format!("uid-{}", self.version).into();
            meta["creationTimestamp"] = clock().to_string().into();
        }
        (meta["resourceVersion"], meta["generation"]) = (self.version.to_string().into(), generation.into());
        meta["managedFields"] = managed;
        let goes = !meta["deletionTimestamp"].is_null() && meta["finalizers"].as_array().is_none_or(Vec::is_empty);
        let value = object.value.clone();
        self.replace(path, (!goes).then_some(object));
        value
    }

    pub fn find(&self, path: &str) -> Option<Object> {
        self.objects.get(path).cloned()
    }
}

fn missing(made: &Made) -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "NotFound", format!("{} not found", made.path))
}

/// Returns whether the object of a path belongs to a collection of its namespace or of all.
fn belongs(path: &str, collection: &str) -> bool {
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let of_all = |parent: &str| {
        let (version, rest) = parent.split_once("/namespaces/")?;
        Some(format!("{version}/{}", rest.split_once('/')?.1))
    };
    parent == collection || of_all(parent).is_some_and(|parent| parent == collection)
}
