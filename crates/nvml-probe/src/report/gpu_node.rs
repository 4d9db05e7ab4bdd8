//! This node's GpuNode: watches it, writes the report to it only if it differs, and creates it for a node that has a GPU, after
//! which the operator brings the probe there.

use std::time::{Duration, Instant};

use futures::StreamExt;
use gpu_host::process::{Backoff, error_chain};
use gpu_operator_crd::{
    gpunode::GpuNode,
    health::HealthRules,
    keys::{DETECTOR_MANAGER, PROBE_MANAGER},
    report::Report,
};
use kube::{
    Api, Client, Config, Resource,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    runtime::{
        WatchStreamExt,
        watcher::{self, watch_object},
    },
};
use serde_json::json;
use tokio::{sync::watch, time::timeout};

use crate::health::rules::Rules;

/// What the watch has shown of this node's GpuNode.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum GpuNodeView {
    /// Nothing yet, not even that it does not exist.
    #[default]
    Unknown,
    Absent,
    Present(Box<GpuNodeFields>),
}

/// The fields of the GpuNode that the probe reads. Nothing else is parsed: an operator of another version may write
/// fields and values that this probe does not know, and a request to release the driver must still take effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuNodeFields {
    pub requests: Requests,
    /// `spec.driverRoot`.
    pub driver_root: Option<String>,
    /// `spec.health`; the defaults if absent or not readable by this version.
    pub rules: HealthRules,
    /// `status.pastResourceNames`: the resources by which the node has offered GPUs.
    pub past_resource_names: Vec<String>,
    /// Whether it has an owner: the operator has seen its Node.
    pub owned: bool,
    /// `status.report`; `None` if absent or not readable by this version.
    pub report: Option<Report>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// To release the driver: `spec.releaseDriver`.
    pub release: bool,
    /// To list the programs that hold the GPUs, and the pods that have them: `spec.reportHolders`.
    pub holders: bool,
}

impl GpuNodeView {
    /// Returns what the operator requests; `None` while that is unknown.
    pub fn requests(&self) -> Option<Requests> {
        match self {
            Self::Unknown => None,
            Self::Absent => Some(Requests::default()),
            Self::Present(fields) => Some(fields.requests),
        }
    }

    pub fn is_owned(&self) -> bool {
        matches!(self, Self::Present(fields) if fields.owned)
    }

    /// Returns the driver's root in addition to those that are always searched.
    pub fn driver_root(&self) -> Option<&str> {
        match self {
            Self::Unknown | Self::Absent => None,
            Self::Present(fields) => fields.driver_root.as_deref(),
        }
    }

    pub fn rules(&self) -> Rules {
        match self {
            Self::Unknown | Self::Absent => Rules::default(),
            Self::Present(fields) => Rules::from(fields.rules.clone()),
        }
    }

    pub fn past_resource_names(&self) -> &[String] {
        match self {
            Self::Unknown | Self::Absent => &[],
            Self::Present(fields) => &fields.past_resource_names,
        }
    }

    pub fn report(&self) -> Option<&Report> {
        match self {
            Self::Unknown | Self::Absent => None,
            Self::Present(fields) => fields.report.as_ref(),
        }
    }
}

impl From<DynamicObject> for GpuNodeFields {
    fn from(object: DynamicObject) -> Self {
        let data = object.data;
        let requests = |path| data.pointer(path).and_then(serde_json::Value::as_bool).unwrap_or(false);
        Self {
            requests: Requests { release: requests("/spec/releaseDriver"), holders: requests("/spec/reportHolders") },
            driver_root: data.pointer("/spec/driverRoot").and_then(serde_json::Value::as_str).map(str::to_owned),
            rules: data.pointer("/spec/health").map(parse_rules).unwrap_or_default(),
            past_resource_names: data
                .pointer("/status/pastResourceNames")
                .and_then(|names| serde_json::from_value(names.clone()).ok())
                .unwrap_or_default(),
            owned: object.metadata.owner_references.is_some_and(|owners| !owners.is_empty()),
            report: data.pointer("/status/report").and_then(|report| serde_json::from_value(report.clone()).ok()),
        }
    }
}

fn parse_rules(spec: &serde_json::Value) -> HealthRules {
    serde_json::from_value(spec.clone()).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot parse the health rules; using the defaults");
        HealthRules::default()
    })
}

/// Watches the GpuNode of the given node for as long as there is a receiver, and retries after any error.
pub async fn watch_gpu_node(client: Client, node: String, seen: watch::Sender<GpuNodeView>) {
    let api: Api<DynamicObject> = Api::all_with(client, &ApiResource::erase::<GpuNode>(&()));
    let mut events = std::pin::pin!(watch_object(api, &node).default_backoff());
    let mut last_error = String::new();
    while let Some(event) = tokio::select! {
        event = events.next() => event,
        () = seen.closed() => None,
    } {
        match event {
            Ok(object) => {
                last_error.clear();
                let now = object
                    .map_or(GpuNodeView::Absent, |object| GpuNodeView::Present(Box::new(GpuNodeFields::from(object))));
                seen.send_if_modified(|before| {
                    let changed = *before != now;
                    *before = now;
                    changed
                });
            }
            Err(error) => log_once(&error, &mut last_error),
        }
    }
}

fn log_once(error: &watcher::Error, last: &mut String) {
    let text = error_chain(error);
    if *last != text {
        tracing::warn!(error = text, kind = %GpuNode::kind(&()), "cannot watch; retrying");
        *last = text;
    }
}

/// The time limit of a request: an unresponsive server must not keep the probe from its node.
const REQUEST: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause between two creations of a GpuNode that does not get an owner. The operator deletes it if its Node does not
/// exist, which the probe cannot read. A GpuNode that a user deletes before the operator has seen it is soon created again.
const LONGEST_PAUSE_WITHOUT_OWNER: Duration = Duration::from_mins(10);
/// The longest pause after an error of the announcer.
const LONGEST_PAUSE_AFTER_ERROR: Duration = Duration::from_mins(1);
/// The longest pause of the announcer once the GpuNode exists.
const LONGEST_PAUSE_IF_PRESENT: Duration = Duration::from_hours(1);

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

pub async fn client() -> Result<Client, PublishError> {
    let mut config = Config::infer().await?;
    let agent = (http::header::USER_AGENT, http::HeaderValue::from_static(crate::USER_AGENT));
    config.headers.push(agent);
    Ok(Client::try_from(config)?)
}

/// The outcome of publishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    Unchanged,
    Report,
    /// The GpuNode was created and the report written.
    Created,
}

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
    pub fn new(client: Client, node: &str) -> Self {
        let (api, resource) = api(client);
        let creations = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE_WITHOUT_OWNER);
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
            create_bare(&self.api, &self.resource, &self.node, PROBE_MANAGER).await?;
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    New,
    /// The operator, or another agent of the node, has created it already.
    Present,
}

/// The API of GpuNodes. Objects are not parsed: another version of the operator may have written them.
fn api(client: Client) -> (Api<DynamicObject>, ApiResource) {
    let resource = ApiResource::erase::<GpuNode>(&());
    (Api::all_with(client, &resource), resource)
}

/// Creates a bare GpuNode, without a status and with an empty spec.
async fn create_bare(
    api: &Api<DynamicObject>,
    resource: &ApiResource,
    node: &str,
    manager: &str,
) -> Result<Created, kube::Error> {
    let bare = DynamicObject::new(node, resource).data(json!({"spec": {}}));
    let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
    match api.create(&params, &bare).await {
        Ok(_) => Ok(Created::New),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Created::Present),
        Err(error) => Err(error),
    }
}

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
    pub fn new(client: Client, node: &str) -> Self {
        let (api, resource) = api(client);
        let errors = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE_AFTER_ERROR);
        let present = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE_IF_PRESENT);
        Self { api, resource, node: node.to_owned(), errors, present }
    }

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
        let created = create_bare(&self.api, &self.resource, &self.node, DETECTOR_MANAGER);
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
