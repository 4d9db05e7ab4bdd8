//! Whether the installation's own objects are as this operator needs them: the chart's ValidatingAdmissionPolicies are enforced,
//! and the CRDs are of its version.
//!
//! The admission policies restrict what the accounts of operator, probe and detector may write. The API server reports nothing if
//! one of them, or its binding, is deleted or changed.

use std::time::Duration;

use gpu_operator_crd::SchemaMismatch;
use k8s_openapi::{
    api::admissionregistration::v1::{MatchResources, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{ResourceExt, core::PartialObjectMeta};
use strum::{EnumIter, IntoStaticStr};
use tokio::time::Instant;

use crate::watch::Known;

/// How long a fault lasts before it is logged: while the chart is installed or upgraded, objects may be missing.
const GRACE: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether requests are denied if the policy cannot be evaluated.
    pub fails_closed: bool,
}

impl From<&ValidatingAdmissionPolicy> for Policy {
    fn from(policy: &ValidatingAdmissionPolicy) -> Self {
        let failure = policy.spec.as_ref().and_then(|spec| spec.failure_policy.as_deref());
        Self { fails_closed: failure.is_none_or(|failure| failure == "Fail") }
    }
}

/// The facts of the binding of a policy. It has the policy's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Whether it binds the policy of its name.
    pub binds: bool,
    /// Whether the policy denies requests, instead of only warning or auditing.
    pub denies: bool,
    /// Whether it excludes some of the requests that the policy matches.
    pub excludes: bool,
}

impl From<&ValidatingAdmissionPolicyBinding> for Binding {
    fn from(binding: &ValidatingAdmissionPolicyBinding) -> Self {
        let spec = binding.spec.clone().unwrap_or_default();
        let actions = spec.validation_actions.unwrap_or_default();
        Self {
            binds: binding.metadata.name.is_some() && spec.policy_name == binding.metadata.name,
            denies: actions.iter().any(|action| action == "Deny"),
            excludes: spec.match_resources.as_ref().is_some_and(excludes),
        }
    }
}

fn excludes(resources: &MatchResources) -> bool {
    let MatchResources { exclude_resource_rules, resource_rules, namespace_selector, object_selector, .. } = resources;
    // The API server sets empty selectors by default; they select everything.
    let mut selectors = [namespace_selector, object_selector].into_iter().flatten();
    let rules = [exclude_resource_rules, resource_rules].into_iter().flatten().any(|rules| !rules.is_empty());
    rules || selectors.any(|selector| *selector != LabelSelector::default())
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr)]
pub enum AdmissionState {
    /// The API server has not answered yet, or rejects the requests.
    #[default]
    Unknown,
    /// Policy and binding are as in the chart.
    Enforced,
    PolicyMissing,
    /// There is no binding, or it names another policy.
    NotBound,
    /// The binding does not have the action Deny.
    NotDenying,
    /// The binding excludes some requests.
    PartlyBound,
    /// Requests are allowed if the policy cannot be evaluated.
    FailsOpen,
}

impl AdmissionState {
    pub const ALL: [Self; 7] = [
        Self::Unknown,
        Self::Enforced,
        Self::PolicyMissing,
        Self::NotBound,
        Self::NotDenying,
        Self::PartlyBound,
        Self::FailsOpen,
    ];

    /// Returns the state of a policy. What is wrong with one object is known without the other.
    pub fn of(policy: Known<Policy>, binding: Known<Binding>) -> Self {
        use Known::{Absent, Present, Unknown};
        match (policy, binding) {
            (Absent, _) => Self::PolicyMissing,
            (_, Absent | Present(Binding { binds: false, .. })) => Self::NotBound,
            (_, Present(Binding { denies: false, .. })) => Self::NotDenying,
            (_, Present(Binding { excludes: true, .. })) => Self::PartlyBound,
            (Present(Policy { fails_closed: false }), _) => Self::FailsOpen,
            (Unknown, _) | (_, Unknown) => Self::Unknown,
            (Present(_), Present(_)) => Self::Enforced,
        }
    }

    /// Returns the state as in the label of the metric.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the fault of the policy of this name, and how to fix it; `None` if it is enforced, or nothing is known.
    pub fn fault(self, name: &str) -> Option<String> {
        let fault = match self {
            Self::Unknown | Self::Enforced => return None,
            Self::PolicyMissing => format!("ValidatingAdmissionPolicy {name} does not exist"),
            Self::NotBound => {
                format!("ValidatingAdmissionPolicyBinding {name} does not exist, or names another policy")
            }
            Self::NotDenying => {
                format!("validationActions of ValidatingAdmissionPolicyBinding {name} do not contain Deny")
            }
            Self::PartlyBound => {
                format!("matchResources of ValidatingAdmissionPolicyBinding {name} exclude some requests")
            }
            Self::FailsOpen => format!("failurePolicy of ValidatingAdmissionPolicy {name} is not Fail"),
        };
        Some(format!(
            "{fault}: the API server may accept writes that the policy denies; to restore it, run helm upgrade with the chart and the \
             values of this installation"
        ))
    }
}

/// Decides which states of one policy are logged: faults that last, and their end.
#[derive(Clone, Copy, Debug)]
pub struct Journal {
    state: AdmissionState,
    since: Instant,
    logged: AdmissionState,
}

impl Journal {
    pub fn new(now: Instant) -> Self {
        Self { state: AdmissionState::Unknown, since: now, logged: AdmissionState::Enforced }
    }

    pub fn record(&mut self, state: AdmissionState, now: Instant) {
        if state != self.state {
            (self.state, self.since) = (state, now);
        }
    }

    /// Returns when the state must be logged; `None` if it has been, or is not known.
    pub fn due(&self) -> Option<Instant> {
        let grace = if self.state == AdmissionState::Enforced { Duration::ZERO } else { GRACE };
        (self.state != AdmissionState::Unknown && self.state != self.logged).then(|| self.since + grace)
    }

    /// Returns the state if it must be logged now, once.
    pub fn take_due(&mut self, now: Instant) -> Option<AdmissionState> {
        self.due().filter(|due| *due <= now)?;
        self.logged = self.state;
        Some(self.state)
    }
}

/// The metadata of a CRD, without its schema, which is large.
pub type CrdMetadata = PartialObjectMeta<CustomResourceDefinition>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crd {
    /// How it differs from this version.
    pub mismatch: Option<SchemaMismatch>,
}

impl From<&CrdMetadata> for Crd {
    fn from(crd: &CrdMetadata) -> Self {
        Self { mismatch: SchemaMismatch::of(&crd.name_any(), crd.annotations()) }
    }
}

/// The version of a CRD, compared with this operator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, EnumIter)]
pub enum SchemaState {
    /// The API server has not answered yet, or rejects the requests.
    Unknown,
    Missing,
    Current,
    /// It has an older schema revision, or none.
    Outdated,
    Newer,
}

impl From<&Known<Crd>> for SchemaState {
    fn from(known: &Known<Crd>) -> Self {
        match known {
            Known::Unknown => Self::Unknown,
            Known::Absent => Self::Missing,
            Known::Present(Crd { mismatch: None }) => Self::Current,
            Known::Present(Crd { mismatch: Some(mismatch) }) if mismatch.is_newer() => Self::Newer,
            Known::Present(_) => Self::Outdated,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(spec: &Value) -> Known<Policy> {
        let policy = json!({"metadata": {"name": "a"}, "spec": spec});
        Known::Present(Policy::from(&serde_json::from_value::<ValidatingAdmissionPolicy>(policy).unwrap()))
    }

    fn binding(spec: &Value) -> Known<Binding> {
        let binding = json!({"metadata": {"name": "a"}, "spec": spec});
        Known::Present(Binding::from(&serde_json::from_value::<ValidatingAdmissionPolicyBinding>(binding).unwrap()))
    }

    /// Returns a binding with these `matchResources`.
    fn matching(resources: &Value) -> Known<Binding> {
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
            (good, deny, AdmissionState::Enforced),
            // The default of the API.
            (policy(&json!({})), deny, AdmissionState::Enforced),
            (good, matching(&empty), AdmissionState::Enforced),
            (Known::Absent, deny, AdmissionState::PolicyMissing),
            (Known::Absent, Known::Unknown, AdmissionState::PolicyMissing),
            (good, Known::Absent, AdmissionState::NotBound),
            (Known::Unknown, Known::Absent, AdmissionState::NotBound),
            (good, binding(&json!({"policyName": "b", "validationActions": ["Deny"]})), AdmissionState::NotBound),
            (good, binding(&json!({"validationActions": ["Deny"]})), AdmissionState::NotBound),
            (good, bound(json!(["Warn", "Audit"])), AdmissionState::NotDenying),
            (good, bound(json!([])), AdmissionState::NotDenying),
            (open, bound(json!(["Warn"])), AdmissionState::NotDenying),
            (good, matching(&by_label), AdmissionState::PartlyBound),
            (good, matching(&elsewhere), AdmissionState::PartlyBound),
            (good, matching(&json!({"resourceRules": rule})), AdmissionState::PartlyBound),
            (good, matching(&json!({"excludeResourceRules": rule})), AdmissionState::PartlyBound),
            (open, deny, AdmissionState::FailsOpen),
            (open, Known::Unknown, AdmissionState::FailsOpen),
            (good, Known::Unknown, AdmissionState::Unknown),
            (Known::Unknown, deny, AdmissionState::Unknown),
            (Known::Unknown, Known::Unknown, AdmissionState::Unknown),
        ] {
            assert_eq!(AdmissionState::of(policy, binding), expected, "{policy:?} {binding:?}");
        }
    }

    #[test]
    fn each_fault_names_the_object_and_the_fix() {
        for state in AdmissionState::ALL {
            let fault = state.fault("the-name");
            assert_eq!(
                fault.is_none(),
                matches!(state, AdmissionState::Unknown | AdmissionState::Enforced),
                "{state:?}"
            );
            let told = |words: &str| fault.as_ref().is_none_or(|fault| fault.contains(words));
            assert!(told(" the-name ") || told(" the-name:"), "{fault:?}");
            assert!(told("run helm upgrade"), "{fault:?}");
        }
    }

    #[test]
    fn faults_are_logged_once_if_they_last_and_so_is_their_end() {
        use AdmissionState::{Enforced, NotBound, PolicyMissing, Unknown};
        let start = Instant::now();
        let mut journal = Journal::new(start);
        for (second, state, expected) in [
            (0, Unknown, None),
            (10, PolicyMissing, None),
            (60, PolicyMissing, None),
            // The chart has been installed completely.
            (69, Enforced, None),
            (100, NotBound, None),
            (159, NotBound, None),
            (160, NotBound, Some(NotBound)),
            (300, NotBound, None),
            (310, Unknown, None),
            (320, NotBound, None),
            (400, NotBound, None),
            (410, PolicyMissing, None),
            (470, PolicyMissing, Some(PolicyMissing)),
            (480, Enforced, Some(Enforced)),
            (490, Enforced, None),
        ] {
            let now = start + Duration::from_secs(second);
            journal.record(state, now);
            assert_eq!(journal.take_due(now), expected, "after {second} s");
        }
    }
}
