//! A request as it was made, and what it asks for.

use std::collections::BTreeMap;

use axum::{
    body::Bytes,
    http::{Method, request::Parts},
};
use serde_json::Value;
use tokio::time::Instant;

use crate::fields::Manager;

/// A request as it was made. The path does not contain the subresource.
#[derive(Clone, Debug)]
pub struct Made {
    pub at: Instant,
    /// The name of the client that made it.
    pub client: &'static str,
    pub method: Method,
    /// Path and query as they were sent.
    pub uri: String,
    pub path: String,
    pub subresource: &'static str,
    pub query: BTreeMap<String, String>,
    pub content_type: String,
    pub body: Value,
}

impl Made {
    pub(crate) fn new(client: &'static str, parts: Parts, body: &Bytes) -> Self {
        let path = parts.uri.path();
        let parent = |name: &'static str| Some((path.strip_suffix(name)?.strip_suffix('/')?, name));
        let (path, subresource) = ["status", "log", "eviction"].into_iter().find_map(parent).unwrap_or((path, ""));
        let query = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        let content_type = parts.headers.get("content-type").and_then(|kind| kind.to_str().ok());
        Self {
            at: Instant::now(),
            client,
            method: parts.method,
            // Without the address of a server that was reached by one.
            uri: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            path: path.to_owned(),
            subresource,
            query: query.into_owned().collect(),
            content_type: content_type.unwrap_or_default().to_owned(),
            body: serde_json::from_slice(body).unwrap_or_default(),
        }
    }

    /// Returns its path with the subresource.
    pub fn url(&self) -> String {
        self.uri.split('?').next().unwrap_or_default().to_owned()
    }

    /// Returns method, path and query.
    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.uri)
    }

    /// Returns whether it is for a resource of this plural, a subresource of this name, or an object of this name.
    pub fn names(&self, part: &str) -> bool {
        self.url().split('/').any(|of| of == part)
    }

    pub fn is_watch(&self) -> bool {
        self.query.contains_key("watch")
    }

    pub fn is_list(&self) -> bool {
        self.method == Method::GET && self.names_collection() && !self.is_watch()
    }

    /// Returns whether it is a server-side apply.
    pub fn is_apply(&self) -> bool {
        self.content_type == "application/apply-patch+yaml"
    }

    pub fn is_write(&self) -> bool {
        self.method != Method::GET
    }

    /// Returns a parameter that is a number.
    pub fn number(&self, parameter: &str) -> Option<u64> {
        self.query.get(parameter)?.parse().ok()
    }

    /// Returns whether it is for a collection: `/api/v1/nodes`, `/apis/apps/v1/namespaces/n/daemonsets`.
    pub(crate) fn names_collection(&self) -> bool {
        self.path.split('/').skip(if self.path.starts_with("/api/") { 3 } else { 4 }).count() % 2 == 1
    }

    /// Returns whether its selectors select an object.
    pub(crate) fn selects(&self, object: &Value) -> bool {
        let parts = |selector| self.query.get(selector).into_iter().flat_map(|parts: &String| parts.split(','));
        let field = |path: &str| {
            let value = path.split('.').fold(object, |at, key| &at[key]);
            value.as_str().unwrap_or_default().to_owned()
        };
        let label = |key: &str| object["metadata"]["labels"][key].as_str();
        parts("labelSelector").all(|part| match part.split_once('=') {
            Some((key, value)) => label(key) == Some(value),
            None => match part.strip_prefix('!') {
                Some(key) => label(key).is_none(),
                None => label(part).is_some(),
            },
        }) && parts("fieldSelector").all(|part| match part.split_once("!=") {
            Some((path, value)) => field(path) != value,
            None => part.split_once('=').is_some_and(|(path, value)| field(path) == value),
        })
    }

    pub(crate) fn manager(&self, operation: &'static str) -> Manager {
        let name = self.query.get("fieldManager").cloned().unwrap_or_default();
        Manager { name, operation, subresource: self.subresource }
    }
}
