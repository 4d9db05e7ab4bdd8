//! What the plan reads of DaemonSets of ours.

use gpu_operator_crd::keys;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec},
        core::v1::Event,
    },
    jiff::Timestamp,
};
use kube::ResourceExt;
use serde::Serialize;

use crate::world::resources::Offer;

/// What the plan reads of a DaemonSet of ours.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DaemonSetFacts {
    /// Hash of what was applied last.
    pub applied: Option<String>,
    /// The policy it belongs to.
    pub policy: Option<String>,
    /// What it makes of a GPU, if it is a device plugin's.
    pub offer: Offer,
    /// Changes with [`Self::spec`], and with nothing else.
    pub generation: Option<i64>,
    /// What it is now.
    pub spec: Option<DaemonSetSpec>,
    /// Whether somebody else has added something to [`Self::spec`].
    pub added_to: bool,
}

impl DaemonSetFacts {
    /// The facts of a DaemonSet.
    #[must_use]
    pub fn of(set: &DaemonSet) -> Self {
        Self {
            applied: set.annotations().get(keys::APPLIED).cloned(),
            policy: set.labels().get(keys::POLICY).cloned(),
            offer: Offer::read(set.annotations().get(keys::OFFER)),
            generation: set.metadata.generation,
            spec: set.spec.clone(),
            added_to: added_to(set),
        }
    }
}

/// Whether a field of the spec is owned by somebody else and not by us: the API server's own record of it.
fn added_to(set: &DaemonSet) -> bool {
    let spec = |ours: bool| {
        let entries = set.managed_fields().iter();
        let entries = entries.filter(move |entry| (entry.manager.as_deref() == Some(keys::MANAGER)) == ours);
        entries.filter_map(|entry| entry.fields_v1.as_ref()?.0.get("f:spec"))
    };
    spec(false).any(|theirs| !spec(true).any(|ours| covers(ours, theirs)))
}

/// Whether a set of managed fields has all of another one.
fn covers(ours: &serde_json::Value, theirs: &serde_json::Value) -> bool {
    theirs.as_object().into_iter().flatten().all(|(key, below)| ours.get(key).is_some_and(|ours| covers(ours, below)))
}

/// The API server's last refusal of a DaemonSet's pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The API server's words.
    pub message: String,
    /// When it said so last.
    pub at: Option<Timestamp>,
}

impl Refusal {
    /// The DaemonSet and its refusal, from a `FailedCreate` event of the DaemonSet controller.
    #[must_use]
    pub fn of(event: &Event) -> Option<(String, Self)> {
        let object = &event.involved_object;
        if object.kind.as_deref() != Some("DaemonSet") || event.reason.as_deref() != Some("FailedCreate") {
            return None;
        }
        let at = event.last_timestamp.as_ref().map(|time| time.0);
        let at = at.or_else(|| event.event_time.as_ref().map(|time| time.0));
        Some((object.name.clone()?, Self { message: event.message.clone().unwrap_or_default(), at }))
    }
}
