//! The facts of this operator's DaemonSets.

use gpu_operator_common::{
    interned::Interned,
    text::{MAX_NAME, clipped},
};
use gpu_operator_crd::{PolicyName, keys};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec},
        core::v1::Event,
    },
    jiff::Timestamp,
};
use kube::ResourceExt;
use serde::Serialize;

use crate::world::{obstacles::newest, resources::ResourceLayout};

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DaemonSetFacts {
    /// The hash of the last applied DaemonSet.
    pub applied: Option<String>,
    pub policy: Option<PolicyName>,
    /// The layout in which it offers GPUs, if it is a device plugin's.
    pub resource_layout: ResourceLayout,
    /// The generation, which changes only when [`Self::spec`] changes.
    pub generation: Option<i64>,
    pub spec: Option<DaemonSetSpec>,
    /// The other field manager that last added fields to [`Self::spec`], or changed some.
    pub added_by: Option<Interned>,
}

impl DaemonSetFacts {
    pub fn of(set: &DaemonSet) -> Self {
        Self {
            applied: set.annotations().get(keys::APPLIED).cloned(),
            policy: set.labels().get(keys::POLICY).map(|policy| policy.as_str().into()),
            resource_layout: set
                .spec
                .as_ref()
                .and_then(|spec| spec.template.spec.as_ref())
                .map(ResourceLayout::of_pod)
                .unwrap_or_default(),
            generation: set.metadata.generation,
            spec: set.spec.clone(),
            added_by: added_by(set),
        }
    }
}

/// Returns the other field manager that last wrote fields of the spec that this operator does not own, according to `managedFields`.
fn added_by(set: &DaemonSet) -> Option<Interned> {
    let own = set.managed_fields().iter().filter(|entry| entry.manager.as_deref() == Some(keys::MANAGER));
    let own: Vec<_> = own.filter_map(|entry| entry.fields_v1.as_ref()?.0.get("f:spec")).collect();
    let adds = |other: &serde_json::Value| !own.iter().any(|own| covers(own, other));
    newest(set.managed_fields(), |fields| fields.get("f:spec").is_some_and(adds)).map(Interned::from)
}

/// Returns whether a set of managed fields contains all fields of another set.
fn covers(own: &serde_json::Value, other: &serde_json::Value) -> bool {
    other.as_object().into_iter().flatten().all(|(key, below)| own.get(key).is_some_and(|own| covers(own, below)))
}

/// The maximum length of a rejection's message that is kept, in bytes.
const MAX_MESSAGE: usize = 2048;

/// Kubelet's word for volumes that are not mounted in time. Why they are not, an Event of its own says.
const NOT_IN_TIME: &str = "Unable to attach or mount volumes";

/// The last rejection of a DaemonSet's pods by the API server, or of a pod's volumes by kubelet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    pub message: String,
    pub at: Option<Timestamp>,
}

impl Refusal {
    /// Returns the DaemonSet and the rejection of its pods, from a `FailedCreate` Event of the DaemonSet controller, or the pod and the
    /// rejection of a volume, from a `FailedMount` Event of kubelet.
    pub fn of(event: &Event) -> Option<(String, Self)> {
        let object = &event.involved_object;
        let says = |words: &str| event.message.as_ref().is_some_and(|message| message.starts_with(words));
        match (object.kind.as_deref()?, event.reason.as_deref()?) {
            ("DaemonSet", "FailedCreate") => {}
            ("Pod", "FailedMount") if !says(NOT_IN_TIME) => {}
            _ => return None,
        }
        let at = event.last_timestamp.as_ref().map(|time| time.0);
        let at = at.or_else(|| event.event_time.as_ref().map(|time| time.0));
        let message = clipped(event.message.as_deref().unwrap_or_default(), MAX_MESSAGE).to_owned();
        // No object has a longer name.
        Some((object.name.clone().filter(|name| name.len() <= MAX_NAME)?, Self { message, at }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rejection_is_of_a_daemon_set_or_of_a_volume() {
        let missing = "MountVolume.SetUp failed for volume \"driver-parameters\" : configmap \"nvidia\" not found";
        let late = "Unable to attach or mount volumes: unmounted volumes=[dev]: timed out waiting for the condition";
        for (kind, reason, message, name) in [
            ("Pod", "FailedMount", missing, Some("x")),
            ("Pod", "FailedMount", late, None),
            ("Pod", "FailedCreate", missing, None),
            ("DaemonSet", "FailedMount", missing, None),
            ("DaemonSet", "FailedCreate", missing, Some("x")),
        ] {
            let about = json!({"kind": kind, "name": "x"});
            let event = json!({"metadata": {}, "involvedObject": about, "reason": reason, "message": message});
            let found = Refusal::of(&serde_json::from_value(event).unwrap());
            assert_eq!(found.as_ref().map(|(name, _)| name.as_str()), name, "{kind} {reason} {message}");
        }
    }

    #[test]
    fn texts_of_a_rejection_are_bounded() {
        for (name, kept) in [("driver".to_owned(), true), ("x".repeat(254), false)] {
            let about = json!({"kind": "DaemonSet", "name": name});
            let event = json!({
                "metadata": {}, "involvedObject": about, "reason": "FailedCreate", "message": "x".repeat(100_000),
            });
            let found = Refusal::of(&serde_json::from_value(event).unwrap());
            assert_eq!(found.map(|(_, refusal)| refusal.message.len()), kept.then_some(MAX_MESSAGE), "{name}");
        }
    }
}
