//! Invalid policies, from `data/rejected.yaml`: the tests verify each of them.

use std::sync::LazyLock;

use serde::Deserialize;

/// All of them.
pub static REJECTED: LazyLock<Rejected> = LazyLock::new(|| {
    let all: Rejected = serde_yaml::from_str(include_str!("../data/rejected.yaml"))
        .unwrap_or_else(|error| panic!("crates/test-support/data/rejected.yaml: {error}"));
    assert!(!(all.by_rule.is_empty() || all.by_type.is_empty() || all.reported.is_empty()), "an empty list");
    all
});

/// Invalid policies, by how they are rejected.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rejected {
    /// By a CEL rule.
    pub by_rule: Vec<Rejection>,
    /// By a type, a bound or a name.
    pub by_type: Vec<Rejection>,
    /// By the operator, because of the nodes.
    pub reported: Vec<Report>,
}

/// A policy that the API server rejects.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rejection {
    /// The `spec` of the policy.
    pub written: String,
    /// The field that the API server names.
    pub at: String,
    /// The message, or a part of it.
    pub message: String,
    /// A `spec` that is valid.
    pub write: String,
}

/// A policy that the API server accepts and the operator reports.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The `spec` of the policy.
    pub written: String,
    /// The pool whose status has the reason.
    pub pool: Option<String>,
    /// The node whose status has the reason.
    pub node: Option<String>,
    pub reason: String,
    pub message: String,
    /// A `spec` that is valid.
    pub write: Option<String>,
}

impl Report {
    /// Returns whether the policy is one beside an older one that selects every node, and its condition `Ready` has the reason.
    pub fn is_of_second_policy(&self) -> bool {
        self.pool.is_none() && self.node.is_none()
    }
}
