//! The permissions that the requests of an account used, from the API server's audit log.

use std::{
    collections::BTreeSet,
    fmt,
    fs::File,
    io::{BufRead, BufReader},
};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::audit::Audit;

/// The user agent of tests that make requests with the token of an account of the chart. They are not requests of the account.
pub const TEST_AGENT: &str = "end-to-end-test";

/// A permission, as in a rule of a role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// The API group; empty for the core group.
    pub group: String,
    /// Plural and subresource, such as `gpunodes/status`.
    pub resource: String,
    /// The verb, such as `patch`.
    pub verb: String,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, resource, verb } = self;
        let dot = if group.is_empty() { "" } else { "." };
        write!(f, "{verb} {resource}{dot}{group}")
    }
}

/// A permission that a request needed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    pub permission: Permission,
    /// The namespace of the request; `None` for objects without one, and for objects of all namespaces.
    pub namespace: Option<String>,
    /// Whether the account lacks the permission. A request that only an admission policy denies does not count.
    pub lacks: bool,
}

impl Audit {
    /// Returns what all requests of `user` needed, without those of tests ([`TEST_AGENT`]).
    pub fn needs(&self, user: &str) -> Result<BTreeSet<Need>> {
        let file = File::open(self.file()).with_context(|| format!("reading {}", self.file().display()))?;
        needs(BufReader::new(file), user)
    }
}

fn needs(lines: impl BufRead, user: &str) -> Result<BTreeSet<Need>> {
    let mut all = BTreeSet::new();
    for line in lines.lines() {
        let line = line?;
        // Most lines belong to other users, and parsing is slow. The last one may be incomplete.
        if line.contains(user)
            && let Ok(entry) = serde_json::from_str::<Entry>(&line)
            && entry.user.username == user
            && !entry.user_agent.starts_with(TEST_AGENT)
        {
            all.extend(entry.needs());
        }
    }
    Ok(all)
}

/// The fields of a log line that are read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    verb: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: Option<ObjectRef>,
    #[serde(default)]
    response_status: ResponseStatus,
    #[serde(default)]
    annotations: Annotations,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "authorization.k8s.io/decision")]
    decision: String,
}

impl Entry {
    /// Returns what the request needed. A patch that creates its object needs both verbs. Requests that are not for objects, such as
    /// for the server's version, need no role of the chart.
    fn needs(self) -> Vec<Need> {
        let Some(ObjectRef { api_group, resource, subresource, namespace }) = self.object_ref else {
            return Vec::new();
        };
        let resource = if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") };
        let created = (self.verb == "patch" && self.response_status.code == 201).then(|| "create".to_owned());
        let verbs = [self.verb].into_iter().chain(created);
        let need = |verb| Need {
            permission: Permission { group: api_group.clone(), resource: resource.clone(), verb },
            namespace: Some(namespace.clone()).filter(|namespace| !namespace.is_empty()),
            lacks: self.annotations.decision == "forbid",
        };
        verbs.map(need).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const USER: &str = "system:serviceaccount:gpu-operator:a";

    /// Returns the needs of one request, as text.
    fn of(change: &Value) -> Vec<String> {
        let mut entry = json!({
            "verb": "patch", "requestURI": "/x", "user": {"username": USER}, "userAgent": "",
            "objectRef": {"resource": "daemonsets", "apiGroup": "apps", "namespace": "gpu-operator", "name": "a"},
            "responseStatus": {"code": 200}, "annotations": {"authorization.k8s.io/decision": "allow"},
        });
        for (field, value) in change.as_object().unwrap() {
            entry[field] = value.clone();
        }
        let text = |need: Need| format!("{} {:?} {}", need.permission, need.namespace.unwrap_or_default(), need.lacks);
        needs(format!("{entry}\n{{").as_bytes(), USER).unwrap().into_iter().map(text).collect()
    }

    #[test]
    fn a_request_needs_its_verb_and_a_creating_patch_another() {
        assert_eq!(of(&json!({})), ["patch daemonsets.apps \"gpu-operator\" false"]);
        let created = ["create daemonsets.apps \"gpu-operator\" false", "patch daemonsets.apps \"gpu-operator\" false"];
        assert_eq!(of(&json!({"responseStatus": {"code": 201}})), created);
        let all_pods = json!({"verb": "list", "objectRef": {"resource": "pods"}});
        assert_eq!(of(&all_pods), ["list pods \"\" false"]);
        let status = json!({"objectRef": {"resource": "nodes", "subresource": "status"}});
        assert_eq!(of(&status), ["patch nodes/status \"\" false"]);
    }

    #[test]
    fn only_missing_permissions_count_as_denials() {
        let denied =
            json!({"annotations": {"authorization.k8s.io/decision": "forbid"}, "responseStatus": {"code": 403}});
        assert_eq!(of(&denied), ["patch daemonsets.apps \"gpu-operator\" true"]);
        assert_eq!(of(&json!({"responseStatus": {"code": 403}})), ["patch daemonsets.apps \"gpu-operator\" false"]);
    }

    #[test]
    fn other_users_tests_and_other_requests_need_nothing() {
        assert!(of(&json!({"user": {"username": "admin"}, "requestURI": USER})).is_empty());
        assert!(of(&json!({"userAgent": TEST_AGENT})).is_empty());
        assert!(of(&json!({"objectRef": null})).is_empty());
    }
}
