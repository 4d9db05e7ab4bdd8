//! Writes this node's report to its GpuNode, only if it differs.

use std::time::{Duration, Instant};

use gpu_host::process::Backoff;
use gpu_operator_crd::{keys::PROBE_MANAGER, report::Report};
use kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::json;
use tokio::time::timeout;

use super::{
    create,
    gpu_node::{GpuNodeFields, GpuNodeView},
};

/// The time limit of a request: an unresponsive server must not keep the probe from its node.
pub(super) const REQUEST: Duration = Duration::from_secs(15);
/// The pauses between two creations of a GpuNode that does not get an owner. The operator deletes it if its Node does not exist,
/// which the probe cannot read. A GpuNode that a user deletes before the operator has seen it is soon created again.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// A report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("no API server is configured")]
    Config(#[from] kube::config::InferConfigError),
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("the API server did not answer within {} s", REQUEST.as_secs())]
    TimedOut,
    #[error("cannot encode the report")]
    Encode(#[from] serde_json::Error),
}

/// Creates a client with the probe's User-Agent.
pub async fn client() -> Result<Client, PublishError> {
    let mut config = Config::infer().await?;
    let agent = (http::header::USER_AGENT, http::HeaderValue::from_static(crate::USER_AGENT));
    config.headers.push(agent);
    Ok(Client::try_from(config)?)
}

/// The outcome of publishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// There was nothing to write.
    Unchanged,
    /// The report was written.
    Report,
    /// The GpuNode was created and the report written.
    Created,
}

/// Writes the report of one node.
#[derive(Debug)]
pub struct Publisher {
    api: Api<DynamicObject>,
    resource: ApiResource,
    node: String,
    creations: Backoff,
    last_write: Option<LastWrite>,
}

/// A completed write. A server whose schema is older than this probe drops unknown fields, so the stored report never
/// equals the one that was sent; that is no reason to send it again.
#[derive(Debug)]
struct LastWrite {
    sent: Report,
    stored: Option<Report>,
}

impl Publisher {
    /// Creates a publisher for the GpuNode of the given node.
    pub fn new(client: Client, node: &str) -> Self {
        let (api, resource) = create::api(client);
        let creations = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        Self { api, resource, node: node.to_owned(), creations, last_write: None }
    }

    /// Writes the report unless the GpuNode already has it. No GpuNode is created for a node without GPUs, but an
    /// existing one is updated. A GpuNode that is deleted again and again before it has an owner is created less and less
    /// often.
    pub async fn publish(
        &mut self,
        gpu_node: &GpuNodeView,
        report: &Report,
        now: Instant,
    ) -> Result<Published, PublishError> {
        if gpu_node.is_owned() {
            self.creations.succeeded();
        }
        let create = match gpu_node {
            GpuNodeView::Unknown => return Ok(Published::Unchanged),
            GpuNodeView::Absent if report.gpus.is_empty() => return Ok(Published::Unchanged),
            // Until the next creation it is written without: it may exist, and the watch be behind.
            GpuNodeView::Absent => self.creations.is_due(now),
            GpuNodeView::Present(fields) if self.is_up_to_date(fields, report) => return Ok(Published::Unchanged),
            GpuNodeView::Present(_) => false,
        };
        timeout(REQUEST, self.write(create.then_some(now), report)).await.map_err(|_| PublishError::TimedOut)??;
        Ok(if create { Published::Created } else { Published::Report })
    }

    fn is_up_to_date(&self, fields: &GpuNodeFields, report: &Report) -> bool {
        fields.report.as_ref() == Some(report)
            || self
                .last_write
                .as_ref()
                .is_some_and(|last_write| last_write.sent == *report && last_write.stored == fields.report)
    }

    async fn write(&mut self, create: Option<Instant>, report: &Report) -> Result<(), PublishError> {
        if let Some(now) = create {
            create::create(&self.api, &self.resource, &self.node, PROBE_MANAGER).await?;
            self.creations.failed(now);
        }
        let patch = json!({
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": {"name": self.node},
            "status": {"report": serde_json::to_value(report)?},
        });
        let params = PatchParams::apply(PROBE_MANAGER).force();
        let fields = GpuNodeFields::from(self.api.patch_status(&self.node, &params, &Patch::Apply(&patch)).await?);
        self.last_write = Some(LastWrite { sent: report.clone(), stored: fields.report });
        Ok(())
    }
}
