//! Events on the objects that they concern: transitions of Nodes, GpuNodes and policies.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use gpu_operator_crd::{GROUP, VERSION, reason::Reason};
use gpu_operator_plan::output::events::{Subject, Transition};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use tokio::{sync::mpsc, time::timeout};

use crate::metrics::Metrics;

/// The maximum number of Events that wait to be published. At most this many are lost with the process, and their memory is bounded.
const WAITING: usize = 4096;
/// The maximum number of Events that are published concurrently.
const AT_ONCE: usize = 4;
/// The time limit for one Event, with the client's own retries.
const DEADLINE: Duration = Duration::from_secs(5);

type Report = (Event, ObjectReference);

/// Hands Events to a task of their own, so that nothing waits for them. Events that cannot be published are only counted: the status
/// shows the same.
#[derive(Clone, Debug)]
pub struct Publisher {
    waiting: mpsc::Sender<Report>,
    metrics: Arc<Metrics>,
}

impl Publisher {
    /// Creates a publisher, and the task that publishes, which ends with the publisher's last clone. There is one for
    /// the whole process, so that repeated Events are counted instead of listed.
    pub fn new(client: Client, metrics: Arc<Metrics>) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (waiting, queue) = mpsc::channel(WAITING);
        (Self { waiting, metrics: Arc::clone(&metrics) }, publish_all(client, metrics, queue))
    }

    pub fn publish(&self, transition: &Transition) {
        let Transition { subject, reason, message } = transition;
        let event = Event {
            type_: if is_warning(*reason) { EventType::Warning } else { EventType::Normal },
            reason: reason.as_str().to_owned(),
            note: Some(message.chars().take(1000).collect()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if self.waiting.try_send((event, reference(subject))).is_err() {
            self.metrics.count_event("Dropped");
        }
    }
}

async fn publish_all(client: Client, metrics: Arc<Metrics>, queue: mpsc::Receiver<Report>) {
    let recorder = Recorder::new(client, Reporter::from(gpu_operator_crd::keys::MANAGER));
    let waiting = stream::unfold(queue, |mut queue| async move { Some((queue.recv().await?, queue)) });
    let publish = async |(event, about): Report| {
        let result = match timeout(DEADLINE, recorder.publish(&event, &about)).await {
            Ok(Ok(())) => "Published",
            Ok(Err(error)) => {
                tracing::warn!(%error, reason = event.reason, "failed to publish an Event");
                "Failed"
            }
            Err(_) => "Failed",
        };
        metrics.count_event(result);
    };
    waiting.for_each_concurrent(AT_ONCE, publish).await;
}

fn is_warning(reason: Reason) -> bool {
    reason.is_failure()
        || reason.is_note()
        || matches!(reason, Reason::NodeNotReady | Reason::NodesNotReady | Reason::NoMatchingNodes)
}

fn reference(subject: &Subject) -> ObjectReference {
    let own = format!("{GROUP}/{VERSION}");
    let (api_version, kind, name, uid) = match subject {
        Subject::Node(name, uid) => ("v1".to_owned(), "Node", name.as_str(), uid),
        Subject::GpuNode(name, uid) => (own, "GpuNode", name.as_str(), uid),
        Subject::Policy(name, uid) => (own, "ClusterGpuPolicy", name.as_str(), uid),
    };
    ObjectReference {
        api_version: Some(api_version),
        kind: Some(kind.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.clone()),
        ..ObjectReference::default()
    }
}
