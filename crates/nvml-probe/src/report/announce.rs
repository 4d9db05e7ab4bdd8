//! Announces that a node has a GPU: creates its GpuNode, after which the operator brings the probe there.

use std::time::{Duration, Instant};

use gpu_host::process::Backoff;
use gpu_operator_crd::keys::DETECTOR_MANAGER;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};
use tokio::time::timeout;

use super::{
    create::{self, Created},
    publish::{PublishError, REQUEST},
};

const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause after an error.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The longest pause once the GpuNode exists.
const LONGEST_PAUSE_IF_PRESENT: Duration = Duration::from_hours(1);

/// Creates the GpuNode of one node as soon as the node has a GPU, and again after it was deleted. It reads nothing from the API server.
#[derive(Debug)]
pub struct Announcer {
    api: Api<DynamicObject>,
    resource: ApiResource,
    node: String,
    errors: Backoff,
    /// The operator deletes the GpuNode of a node whose last report shows no GPU. The GPU may be back by then, and may have been away
    /// between two looks only. So the announcer tries to create a GpuNode that exists, less and less often.
    present: Backoff,
}

impl Announcer {
    /// Creates an announcer for the GpuNode of the given node.
    pub fn new(client: Client, node: &str) -> Self {
        let (api, resource) = create::api(client);
        let errors = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let present = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE_IF_PRESENT);
        Self { api, resource, node: node.to_owned(), errors, present }
    }

    /// Returns whether the last request failed.
    pub fn has_failed(&self) -> bool {
        self.errors.has_failed()
    }

    /// Creates the GpuNode if the node has a GPU and a request is due. Returns the outcome of a request, if one was made.
    pub async fn announce(&mut self, has_gpu: bool, now: Instant) -> Result<Option<Created>, PublishError> {
        if !has_gpu {
            if self.present.has_failed() {
                tracing::info!("no GPU is left");
            }
            self.present.succeeded();
            return Ok(None);
        }
        if !self.errors.is_due(now) || !self.present.is_due(now) {
            return Ok(None);
        }
        let created = create::create(&self.api, &self.resource, &self.node, DETECTOR_MANAGER);
        let outcome = timeout(REQUEST, created).await.map_err(|_| PublishError::TimedOut);
        let outcome = outcome.and_then(|created| Ok(created?));
        match &outcome {
            Err(_) => drop(self.errors.failed(now)),
            Ok(created) => {
                self.errors.succeeded();
                if *created == Created::New {
                    self.present.succeeded();
                }
                self.present.failed(now);
            }
        }
        outcome.map(Some)
    }
}
