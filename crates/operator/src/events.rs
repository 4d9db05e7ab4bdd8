//! Events: what people should hear of, on the object that it is about: transitions of Nodes and policies, mistakes in pods.

use gpu_operator_crd::{GROUP, VERSION, reason::Reason};
use gpu_operator_plan::output::events::{Subject, Transition};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use crate::diagnose::Finding;

/// Publishes what is to be told. One for the whole process, so that repeats are counted rather than listed.
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
        let Transition { subject, reason, message } = transition;
        self.tell(subject, is_warning(*reason), reason.as_str(), message, "Reconcile").await;
    }

    /// Publishes a mistake in a pod. One that is lost stays lost: the pod may be gone with its namespace.
    pub async fn publish_finding(&self, finding: &Finding) {
        let Finding { subject, reason, message, .. } = finding;
        self.tell(subject, reason.is_warning(), reason.as_str(), message, "Diagnose").await;
    }

    async fn tell(&self, subject: &Subject, warning: bool, reason: &str, message: &str, action: &str) {
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(message.chars().take(1000).collect()),
            action: action.to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, &reference(subject)).await {
            tracing::warn!(%error, reason, "an Event was lost");
        }
    }
}

fn is_warning(reason: Reason) -> bool {
    reason.is_failure() || reason.is_note() || matches!(reason, Reason::NodeNotReady | Reason::NodesNotReady)
}

fn reference(subject: &Subject) -> ObjectReference {
    let (api_version, kind, namespace, name, uid) = match subject {
        Subject::Node(name, uid) => ("v1".to_owned(), "Node", None, name, uid),
        Subject::Policy(name, uid) => (format!("{GROUP}/{VERSION}"), "ClusterGpuPolicy", None, name, uid),
        Subject::Namespaced { api_version, kind, namespace, name, uid } => {
            (api_version.clone(), kind.as_str(), Some(namespace.clone()), name, uid)
        }
    };
    ObjectReference {
        api_version: Some(api_version),
        kind: Some(kind.to_owned()),
        namespace,
        name: Some(name.clone()),
        uid: Some(uid.clone()),
        ..ObjectReference::default()
    }
}
