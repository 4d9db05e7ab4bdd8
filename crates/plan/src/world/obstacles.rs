//! What keeps this operator's writes from lasting: other field managers, and rejections.

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{NodeName, PolicyName, keys, reason::Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde::Serialize;
use serde_json::Value;

/// The other managers that last wrote fields of a Node that this operator writes, according to the API server's `managedFields`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CoWriters {
    /// The labels of [`keys::NODE_LABELS`].
    pub labels: Option<Interned>,
    /// The conditions of [`keys::NODE_CONDITIONS`].
    pub conditions: Option<Interned>,
    /// The taints, which are one field.
    pub taints: Option<Interned>,
}

impl CoWriters {
    pub fn of(managed: &[ManagedFieldsEntry]) -> Self {
        let find = |owns: &dyn Fn(&Value) -> bool| newest(managed, owns).map(Interned::from);
        let own = keys::NODE_CONDITIONS.map(|kind| format!("k:{{\"type\":\"{kind}\"}}"));
        Self {
            labels: find(&|fields| {
                let labels = fields.get("f:metadata").and_then(|meta| meta.get("f:labels")?.as_object());
                let mut keys = labels.into_iter().flat_map(|labels| labels.keys());
                keys.any(|key| key.strip_prefix("f:").is_some_and(|key| keys::NODE_LABELS.contains(&key)))
            }),
            conditions: find(&|fields| {
                let conditions = fields.get("f:status").and_then(|status| status.get("f:conditions"));
                conditions.is_some_and(|conditions| own.iter().any(|own| conditions.get(own).is_some()))
            }),
            taints: find(&|fields| fields.get("f:spec").is_some_and(|spec| spec.get("f:taints").is_some())),
        }
    }
}

/// Returns the other manager that last wrote one of its fields, among those for whose fields `owns` is true.
pub fn newest(entries: &[ManagedFieldsEntry], owns: impl Fn(&Value) -> bool) -> Option<&str> {
    let is_own = |name: &str| [keys::MANAGER, keys::LABEL_MANAGER, keys::HEALTH_MANAGER].contains(&name);
    let others = entries.iter().filter_map(|entry| {
        let name = entry.manager.as_deref().filter(|name| !is_own(name))?;
        owns(&entry.fields_v1.as_ref()?.0).then_some((entry.time.as_ref().map(|time| time.0), name))
    });
    others.max_by_key(|(time, _)| *time).map(|(_, name)| name)
}

/// A write of this operator that is made less often because it has no lasting effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldWrite {
    pub concerns: Concern,
    /// Why: [`Reason::ApplyFailed`] or [`Reason::ManagerConflict`].
    pub reason: Reason,
    /// The error with the action and the object, or the fields that another manager changes.
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Concern {
    Node(NodeName),
    Policy(PolicyName),
    /// Possibly every policy.
    Fleet,
}

impl Concern {
    /// Whether it concerns a policy, given whether a node is a member of the policy.
    pub fn is_of(&self, policy: &PolicyName, is_member: impl Fn(&NodeName) -> bool) -> bool {
        match self {
            Self::Node(node) => is_member(node),
            Self::Policy(name) => name == policy,
            Self::Fleet => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_other_manager_of_each_field_is_found() {
        let entry = |manager: &str, day: u8, fields: Value| serde_json::json!({"manager": manager, "time": format!("2026-01-0{day}T00:00:00Z"), "fieldsV1": fields});
        let label = |key: &str| serde_json::json!({"f:metadata": {"f:labels": {format!("f:{key}"): {}}}});
        let condition = format!("k:{{\"type\":\"{}\"}}", keys::HEALTH_CONDITION);
        let managed = serde_json::json!([
            entry("older", 1, label(keys::DRIVER)),
            entry("kyverno", 3, label(keys::POOL)),
            entry("kubectl-label", 2, label(keys::MODEL)),
            entry("kubelet", 4, label("kubernetes.io/os")),
            entry(keys::LABEL_MANAGER, 5, label(keys::DRIVER)),
            entry("detector", 2, serde_json::json!({"f:status": {"f:conditions": {condition: {}}}})),
            entry("kubelet", 5, serde_json::json!({"f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {}}}})),
            entry(keys::HEALTH_MANAGER, 6, serde_json::json!({"f:spec": {"f:taints": {}}})),
        ]);
        let managed: Vec<ManagedFieldsEntry> = serde_json::from_value(managed).unwrap();
        let found = CoWriters::of(&managed);
        let expected = CoWriters { labels: Some("kyverno".into()), conditions: Some("detector".into()), taints: None };
        assert_eq!(found, expected);
    }
}
