//! What tests of several commands share: an API server, as a service of kube's client, and a screen. The server serves reads of
//! stored objects, and counts requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
};

use http::{Method, Request, Response, StatusCode};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

use crate::output::{Screen, WIDTH, columns};

/// The screen of snapshots.
pub const SCREEN: Screen = Screen { colour: false, unicode: true };

/// Returns the answer to a request for the version.
pub fn version(version: &str) -> Value {
    json!({
        "major": "1", "minor": "36", "gitVersion": version, "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "",
        "compiler": "", "platform": "",
    })
}

/// Asserts that no line is too long, except one with a single word.
pub fn assert_narrow(text: &str) {
    let is_long = |line: &&str| columns(line) > WIDTH && line.trim_start().contains(' ');
    assert_eq!(text.lines().find(is_long), None, "{text}");
}

#[derive(Clone, Debug, Default)]
pub struct FakeApi(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Value>,
    /// Answers that are no objects, such as logs, by path.
    texts: BTreeMap<String, String>,
    /// The plurals of resources that may not be read.
    forbidden: BTreeSet<String>,
    down: bool,
    /// The requests so far, as `METHOD path?query`.
    requests: Vec<String>,
}

impl FakeApi {
    pub fn add<K: Resource<DynamicType = ()> + Serialize>(&self, object: &K) -> &Self {
        let path = format!("{}/{}", K::url_path(&(), object.meta().namespace.as_deref()), object.name_any());
        let mut value = serde_json::to_value(object).expect("JSON");
        value["apiVersion"] = K::api_version(&()).into();
        value["kind"] = K::kind(&()).into();
        self.add_json(&path, value)
    }

    /// Stores an object at a path such as `/api/v1/nodes/a`.
    pub fn add_json(&self, path: &str, object: Value) -> &Self {
        self.state(|state| state.objects.insert(path.to_owned(), object));
        self
    }

    pub fn remove(&self, path: &str) {
        self.state(|state| state.objects.remove(path));
    }

    pub fn add_text(&self, path: &str, text: &str) -> &Self {
        self.state(|state| state.texts.insert(path.to_owned(), text.to_owned()));
        self
    }

    pub fn forbid(&self, plural: &str) -> &Self {
        self.state(|state| state.forbidden.insert(plural.to_owned()));
        self
    }

    pub fn stop(&self) {
        self.state(|state| state.down = true);
    }

    pub fn objects(&self) -> Vec<Value> {
        self.state(|state| state.objects.values().cloned().collect())
    }

    pub fn requests(&self) -> Vec<String> {
        self.state(|state| state.requests.clone())
    }

    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request.method(), &request.uri().to_string())) }
        });
        Client::new(service, "default")
    }

    fn state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn answer(&self, method: &Method, uri: &str) -> Response<kube::client::Body> {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let query = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let (code, text) = self.state(|state| {
            state.requests.push(format!("{method} {uri}"));
            state.answer(path, &query)
        });
        let response = Response::builder().status(code);
        response.body(kube::client::Body::from(text.into_bytes())).expect("a response")
    }
}

impl State {
    fn answer(&self, path: &str, query: &BTreeMap<String, String>) -> (StatusCode, String) {
        if self.down {
            return failure(StatusCode::SERVICE_UNAVAILABLE, "the server is down");
        }
        if let Some(plural) = path.split('/').find(|part| self.forbidden.contains(*part)) {
            return failure(StatusCode::FORBIDDEN, &format!("{plural} is forbidden"));
        }
        if let Some(text) = self.texts.get(path) {
            return (StatusCode::OK, text.clone());
        }
        if let Some(object) = self.objects.get(path) {
            return (StatusCode::OK, object.to_string());
        }
        // Everything that is not stored is a collection, if its path has the form of one.
        let Some((base, plural)) = path.rsplit_once('/') else { return failure(StatusCode::NOT_FOUND, path) };
        let is_in = |of: &str| match of.rsplit_once('/') {
            Some((folder, _)) if folder == path => true,
            // All namespaces.
            Some((folder, _)) => folder.strip_prefix(base).is_some_and(|rest| {
                let rest = rest.strip_prefix("/namespaces/").and_then(|rest| rest.split_once('/'));
                rest.is_some_and(|(_, of)| of == plural)
            }),
            None => false,
        };
        let found = self.objects.iter().filter(|(path, object)| is_in(path) && selects(query, object));
        let items: Vec<&Value> = found.map(|(_, object)| object).collect();
        if items.is_empty() && is_object(path) {
            return failure(StatusCode::NOT_FOUND, path);
        }
        let from = query.get("continue").and_then(|token| token.parse().ok()).unwrap_or(0_usize);
        let most = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
        let page: Vec<&Value> = items.iter().copied().skip(from).take(most).collect();
        let next = from + page.len();
        let token = if next < items.len() { next.to_string() } else { String::new() };
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"continue": token}, "items": page});
        (StatusCode::OK, list.to_string())
    }
}

/// Returns whether a path is of a single object: /api/v1/[namespaces/n/]plural/name, /apis/group/version/[…].
fn is_object(path: &str) -> bool {
    path.split('/').skip(if path.starts_with("/api/") { 3 } else { 4 }).count() % 2 == 0
}

/// Returns whether the selectors of a list select an object: labels by equality or existence, fields by equality.
fn selects(query: &BTreeMap<String, String>, object: &Value) -> bool {
    let parts = |selector| query.get(selector).into_iter().flat_map(|parts: &String| parts.split(','));
    let field = |path: &str| path.split('.').fold(object, |at, key| &at[key]).as_str().unwrap_or_default().to_owned();
    let label = |key: &str| object["metadata"]["labels"][key].as_str();
    parts("labelSelector").all(|part| match part.split_once('=') {
        Some((key, value)) => label(key) == Some(value),
        None => label(part).is_some(),
    }) && parts("fieldSelector").all(|part| part.split_once('=').is_some_and(|(path, value)| field(path) == value))
}

fn failure(code: StatusCode, message: &str) -> (StatusCode, String) {
    let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code.as_u16(),
    });
    (code, status.to_string())
}
