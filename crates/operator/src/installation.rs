//! Whether the installation's own objects are as this operator needs them: the chart's ValidatingAdmissionPolicies are enforced,
//! and the CRDs are not older than the operator.
//!
//! The admission policies restrict what the accounts of operator, probe and detector may write. The API server reports nothing if
//! one of them, or its binding, is deleted or changed.

use gpu_operator_crd::SchemaMismatch;
use k8s_openapi::{
    api::admissionregistration::v1::{MatchResources, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{ResourceExt, core::PartialObjectMeta};

use crate::watch::Known;

/// Whether a policy denies requests that it cannot evaluate, or whether a binding lets the policy of its name deny all requests that it
/// matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enforces(pub bool);

impl From<&ValidatingAdmissionPolicy> for Enforces {
    fn from(policy: &ValidatingAdmissionPolicy) -> Self {
        let failure = policy.spec.as_ref().and_then(|spec| spec.failure_policy.as_deref());
        Self(failure.is_none_or(|failure| failure == "Fail"))
    }
}

impl From<&ValidatingAdmissionPolicyBinding> for Enforces {
    fn from(binding: &ValidatingAdmissionPolicyBinding) -> Self {
        let spec = binding.spec.clone().unwrap_or_default();
        let binds = binding.metadata.name.is_some() && spec.policy_name == binding.metadata.name;
        let denies = spec.validation_actions.iter().flatten().any(|action| action == "Deny");
        Self(binds && denies && !spec.match_resources.as_ref().is_some_and(excludes))
    }
}

fn excludes(resources: &MatchResources) -> bool {
    let MatchResources { exclude_resource_rules, resource_rules, namespace_selector, object_selector, .. } = resources;
    // The API server sets empty selectors by default; they select everything.
    let mut selectors = [namespace_selector, object_selector].into_iter().flatten();
    let rules = [exclude_resource_rules, resource_rules].into_iter().flatten().any(|rules| !rules.is_empty());
    rules || selectors.any(|selector| *selector != LabelSelector::default())
}

/// Returns whether a policy with this binding is enforced, or `None` if that is not known. What is wrong with one object is known without
/// the other.
pub fn is_enforced(policy: Known<Enforces>, binding: Known<Enforces>) -> Option<bool> {
    let both = [policy, binding];
    if both.iter().any(|known| matches!(known, Known::Absent | Known::Present(Enforces(false)))) {
        return Some(false);
    }
    (!both.contains(&Known::Unknown)).then_some(true)
}

/// The metadata of a CRD, without its schema, which is large.
pub type CrdMetadata = PartialObjectMeta<CustomResourceDefinition>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crd {
    /// How it differs from this operator's, if it is older.
    pub outdated: Option<SchemaMismatch>,
}

impl From<&CrdMetadata> for Crd {
    fn from(crd: &CrdMetadata) -> Self {
        let mismatch = SchemaMismatch::of(&crd.name_any(), crd.annotations());
        Self { outdated: mismatch.filter(|mismatch| !mismatch.is_newer()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(spec: &Value) -> Known<Enforces> {
        let policy = json!({"metadata": {"name": "a"}, "spec": spec});
        Known::Present(Enforces::from(&serde_json::from_value::<ValidatingAdmissionPolicy>(policy).unwrap()))
    }

    fn binding(spec: &Value) -> Known<Enforces> {
        let binding = json!({"metadata": {"name": "a"}, "spec": spec});
        Known::Present(Enforces::from(&serde_json::from_value::<ValidatingAdmissionPolicyBinding>(binding).unwrap()))
    }

    /// Returns a binding with these `matchResources`.
    fn matching(resources: &Value) -> Known<Enforces> {
        binding(&json!({"policyName": "a", "validationActions": ["Deny"], "matchResources": resources}))
    }

    #[test]
    fn a_policy_is_enforced_only_if_it_is_bound_and_denies() {
        let (good, open) = (policy(&json!({"failurePolicy": "Fail"})), policy(&json!({"failurePolicy": "Ignore"})));
        let bound = |actions: Value| binding(&json!({"policyName": "a", "validationActions": actions}));
        let deny = bound(json!(["Audit", "Deny"]));
        let empty = json!({"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}});
        let by_label = json!({"objectSelector": {"matchLabels": {"a": "b"}}});
        let elsewhere = json!({"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}});
        let rule = json!([{"apiGroups": ["a"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["b"]}]);
        for (policy, binding, expected) in [
            (good, deny, Some(true)),
            // The default of the API.
            (policy(&json!({})), deny, Some(true)),
            (good, matching(&empty), Some(true)),
            (Known::Absent, deny, Some(false)),
            (Known::Absent, Known::Unknown, Some(false)),
            (good, Known::Absent, Some(false)),
            (Known::Unknown, Known::Absent, Some(false)),
            (good, binding(&json!({"policyName": "b", "validationActions": ["Deny"]})), Some(false)),
            (good, binding(&json!({"validationActions": ["Deny"]})), Some(false)),
            (good, bound(json!(["Warn", "Audit"])), Some(false)),
            (good, bound(json!([])), Some(false)),
            (good, matching(&by_label), Some(false)),
            (good, matching(&elsewhere), Some(false)),
            (good, matching(&json!({"resourceRules": rule})), Some(false)),
            (good, matching(&json!({"excludeResourceRules": rule})), Some(false)),
            (open, deny, Some(false)),
            (open, Known::Unknown, Some(false)),
            (good, Known::Unknown, None),
            (Known::Unknown, deny, None),
            (Known::Unknown, Known::Unknown, None),
        ] {
            assert_eq!(is_enforced(policy, binding), expected, "{policy:?} {binding:?}");
        }
    }
}
