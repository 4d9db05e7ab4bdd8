//! Events on the objects that they concern: transitions of Nodes and policies, and mistakes in pods.

use gpu_operator_crd::{GROUP, VERSION, reason::Reason};
use gpu_operator_plan::output::events::{Subject, Transition};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use crate::diagnose::Finding;

/// Publishes Events. There is one publisher for the whole process, so that repeated Events are counted instead of listed.
#[derive(Clone)]
pub struct Publisher {
    recorder: Recorder,
}

impl Publisher {
    /// Creates a publisher that writes through `client`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { recorder: Recorder::new(client, Reporter::from(gpu_operator_crd::keys::MANAGER)) }
    }

    /// Publishes one transition. If that fails, it is only logged: the status shows the same.
    pub async fn publish(&self, transition: &Transition) {
        let Transition { subject, reason, message } = transition;
        self.tell(subject, is_warning(*reason), reason.as_str(), message, "Reconcile").await;
    }

    /// Publishes a mistake in a pod. If that fails, it is not retried: the pod may be gone with its namespace.
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
            tracing::warn!(%error, reason, "failed to publish an Event");
        }
    }
}

fn is_warning(reason: Reason) -> bool {
    reason.is_failure()
        || reason.is_note()
        || matches!(reason, Reason::NodeNotReady | Reason::NodesNotReady | Reason::NoMatchingNodes)
}

fn reference(subject: &Subject) -> ObjectReference {
    let (api_version, kind, namespace, name, uid) = match subject {
        Subject::Node(name, uid) => ("v1".to_owned(), "Node", None, name.as_str(), uid),
        Subject::GpuNode(name, uid) => (format!("{GROUP}/{VERSION}"), "GpuNode", None, name.as_str(), uid),
        Subject::Policy(name, uid) => (format!("{GROUP}/{VERSION}"), "ClusterGpuPolicy", None, name.as_str(), uid),
        Subject::Namespaced { api_version, kind, namespace, name, uid } => {
            (api_version.clone(), kind.as_str(), Some(namespace.clone()), name.as_str(), uid)
        }
    };
    ObjectReference {
        api_version: Some(api_version),
        kind: Some(kind.to_owned()),
        namespace,
        name: Some(name.to_owned()),
        uid: Some(uid.clone()),
        ..ObjectReference::default()
    }
}
