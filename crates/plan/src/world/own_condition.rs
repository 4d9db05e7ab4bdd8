//! The conditions of Nodes that this operator sets.

use std::collections::BTreeMap;

use gpu_operator_crd::keys;
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

/// The conditions of a Node that this operator sets, by type.
pub type OwnConditions = BTreeMap<&'static str, OwnCondition>;

/// A condition of a Node that this operator sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OwnCondition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason, a single word.
    pub reason: String,
    pub message: String,
    /// The time of the last transition.
    pub since: Option<Timestamp>,
}

impl OwnCondition {
    /// Returns whether another condition is the same except for its time.
    pub fn says(&self, other: &Self) -> bool {
        (&self.status, &self.reason, &self.message) == (&other.status, &other.reason, &other.message)
    }

    /// Returns it in the API server's notation.
    pub fn to_value(&self, kind: &str) -> Value {
        let Self { status, reason, message, since } = self;
        let since = since.map(Time);
        json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
    }
}

impl From<&NodeCondition> for OwnCondition {
    fn from(condition: &NodeCondition) -> Self {
        Self {
            status: condition.status.clone(),
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
            since: condition.last_transition_time.as_ref().map(|time| time.0),
        }
    }
}

/// Returns those of a Node's conditions that this operator sets.
pub fn own(conditions: &[NodeCondition]) -> OwnConditions {
    let find = |kind| Some((kind, conditions.iter().find(|condition| condition.type_ == kind)?.into()));
    keys::NODE_CONDITIONS.into_iter().filter_map(find).collect()
}
