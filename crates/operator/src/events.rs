//! Events: transitions that people should hear of, on the Node or policy they happened to.

use gpu_operator_crd::{GROUP, VERSION, reason::Reason};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use crate::plan::{Subject, Transition};

/// Publishes transitions. One for the whole process, so that repeats are counted rather than listed.
#[derive(Clone)]
pub struct Publisher {
    recorder: Recorder,
}

impl Publisher {
    /// Publishes through `client`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { recorder: Recorder::new(client, Reporter::from(gpu_operator_crd::keys::MANAGER)) }
    }

    /// Publishes one transition. An Event that is lost is only logged: status tells the same.
    pub async fn publish(&self, transition: &Transition) {
        let event = Event {
            type_: if is_warning(transition.reason) { EventType::Warning } else { EventType::Normal },
            reason: transition.reason.as_str().to_owned(),
            note: Some(transition.message.chars().take(1000).collect()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, &reference(&transition.subject)).await {
            tracing::warn!(%error, reason = %transition.reason, "an Event was lost");
        }
    }
}

fn is_warning(reason: Reason) -> bool {
    reason.is_failure() || reason.is_note() || matches!(reason, Reason::NodeNotReady | Reason::NodesNotReady)
}

fn reference(subject: &Subject) -> ObjectReference {
    let (api_version, kind, name, uid) = match subject {
        Subject::Node(name, uid) => ("v1".to_owned(), "Node", name, uid),
        Subject::Policy(name, uid) => (format!("{GROUP}/{VERSION}"), "ClusterGpuPolicy", name, uid),
    };
    ObjectReference {
        api_version: Some(api_version),
        kind: Some(kind.to_owned()),
        name: Some(name.clone()),
        uid: Some(uid.clone()),
        ..ObjectReference::default()
    }
}
