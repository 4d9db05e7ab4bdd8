//! The probe's access to the Kubernetes API: watches this node's GpuNode, and writes it only if the report differs.

use std::time::Duration;

use futures::{StreamExt, TryFutureExt};
use gpu_operator_crd::{gpunode::GpuNode, health::HealthRules, keys::PROBE_MANAGER, report::Report};
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

/// The time limit of a request: an unresponsive server must not keep the probe from its node.
const REQUEST: Duration = Duration::from_secs(15);

/// A report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// There is no configuration, neither a pod's nor a kubeconfig.
    #[error("no API server is configured")]
    Config(#[from] kube::config::InferConfigError),
    /// The API server rejected the request or could not be reached.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The API server did not answer in time.
    #[error("the API server did not answer within {} s", REQUEST.as_secs())]
    TimedOut,
    /// The report cannot be encoded as JSON.
    #[error("cannot encode the report")]
    Encode(#[from] serde_json::Error),
}

/// Creates a client with the probe's User-Agent.
///
/// # Errors
/// Returns an error if the API server is not configured, or its certificates cannot be used.
pub async fn client() -> Result<Client, PublishError> {
    let mut config = Config::infer().await?;
    let agent = (http::header::USER_AGENT, http::HeaderValue::from_static(crate::USER_AGENT));
    config.headers.push(agent);
    Ok(Client::try_from(config)?)
}

/// What the watch has shown of this node's GpuNode.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Seen {
    /// Nothing yet, not even that it does not exist.
    #[default]
    Unknown,
    /// It does not exist.
    Absent,
    /// It exists.
    Present(Box<Own>),
}

/// The fields of its GpuNode that the probe reads. Nothing else is parsed: an operator of another version may write
/// fields and values that this probe does not know, and a request to release the driver must still take effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Own {
    /// `spec.releaseDriver`.
    pub release: bool,
    /// `spec.driverRoot`.
    pub driver_root: Option<String>,
    /// `spec.health`; the defaults if absent or not readable by this version.
    pub rules: HealthRules,
    /// `status.report`; `None` if absent or not readable by this version.
    pub report: Option<Report>,
}

impl Seen {
    /// Returns whether the driver has to be released; `None` while that is unknown.
    #[must_use]
    pub fn release(&self) -> Option<bool> {
        match self {
            Self::Unknown => None,
            Self::Absent => Some(false),
            Self::Present(own) => Some(own.release),
        }
    }

    /// Returns the driver's root in addition to those that are always searched.
    #[must_use]
    pub fn driver_root(&self) -> Option<&str> {
        match self {
            Self::Unknown | Self::Absent => None,
            Self::Present(own) => own.driver_root.as_deref(),
        }
    }

    /// Returns the rules by which GPUs are evaluated.
    #[must_use]
    pub fn rules(&self) -> Rules {
        match self {
            Self::Unknown | Self::Absent => Rules::default(),
            Self::Present(own) => Rules::from(own.rules.clone()),
        }
    }

    /// Returns the last report.
    #[must_use]
    pub fn report(&self) -> Option<&Report> {
        match self {
            Self::Unknown | Self::Absent => None,
            Self::Present(own) => own.report.as_ref(),
        }
    }
}

impl From<DynamicObject> for Own {
    fn from(object: DynamicObject) -> Self {
        let data = object.data;
        Self {
            release: data.pointer("/spec/releaseDriver").and_then(serde_json::Value::as_bool).unwrap_or(false),
            driver_root: data.pointer("/spec/driverRoot").and_then(serde_json::Value::as_str).map(str::to_owned),
            rules: data.pointer("/spec/health").map(rules).unwrap_or_default(),
            report: data.pointer("/status/report").and_then(|report| serde_json::from_value(report.clone()).ok()),
        }
    }
}

fn rules(spec: &serde_json::Value) -> HealthRules {
    serde_json::from_value(spec.clone()).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot parse the health rules; using the defaults");
        HealthRules::default()
    })
}

/// The outcome of publishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// There was nothing to write.
    Nothing,
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
    settled: Option<Settled>,
}

/// A completed write. A server whose schema is older than this probe drops unknown fields, so the stored report never
/// equals the one that was sent; that is no reason to send it again.
#[derive(Debug)]
struct Settled {
    sent: Report,
    stored: Option<Report>,
}

impl Publisher {
    /// Creates a publisher for the GpuNode of the given node.
    #[must_use]
    pub fn new(client: Client, node: &str) -> Self {
        let resource = ApiResource::erase::<GpuNode>(&());
        let api = Api::all_with(client, &resource);
        Self { api, resource, node: node.to_owned(), settled: None }
    }

    /// Writes the report unless the GpuNode already has it. No GpuNode is created for a node without GPUs, but an
    /// existing one is updated.
    ///
    /// # Errors
    /// Returns an error if the API server rejects the request, or does not answer in time.
    pub async fn publish(&mut self, seen: &Seen, report: &Report) -> Result<Published, PublishError> {
        let create = match seen {
            Seen::Unknown => return Ok(Published::Nothing),
            Seen::Absent if report.gpus.is_empty() => return Ok(Published::Nothing),
            Seen::Absent => true,
            Seen::Present(own) if self.is_settled(own, report) => return Ok(Published::Nothing),
            Seen::Present(_) => false,
        };
        timeout(REQUEST, self.write(create, report)).await.map_err(|_| PublishError::TimedOut)??;
        Ok(if create { Published::Created } else { Published::Report })
    }

    fn is_settled(&self, own: &Own, report: &Report) -> bool {
        own.report.as_ref() == Some(report)
            || self.settled.as_ref().is_some_and(|settled| settled.sent == *report && settled.stored == own.report)
    }

    async fn write(&mut self, create: bool, report: &Report) -> Result<(), PublishError> {
        if create {
            let bare = DynamicObject::new(&self.node, &self.resource).data(json!({"spec": {}}));
            let params = PostParams { field_manager: Some(PROBE_MANAGER.to_owned()), ..PostParams::default() };
            self.api.create(&params, &bare).map_ok(drop).or_else(already_there).await?;
        }
        let patch = json!({
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": {"name": self.node},
            "status": {"report": serde_json::to_value(report)?},
        });
        let params = PatchParams::apply(PROBE_MANAGER).force();
        let own = Own::from(self.api.patch_status(&self.node, &params, &Patch::Apply(&patch)).await?);
        self.settled = Some(Settled { sent: report.clone(), stored: own.report });
        Ok(())
    }
}

/// Accepts that the operator has created it in the meantime.
async fn already_there(error: kube::Error) -> Result<(), kube::Error> {
    match error {
        kube::Error::Api(status) if status.is_already_exists() => Ok(()),
        error => Err(error),
    }
}

/// Watches the GpuNode of the given node for as long as there is a receiver, and retries after any error.
pub async fn follow(client: Client, node: String, seen: watch::Sender<Seen>) {
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
                let now = object.map_or(Seen::Absent, |object| Seen::Present(Box::new(Own::from(object))));
                seen.send_if_modified(|before| {
                    let changed = *before != now;
                    *before = now;
                    changed
                });
            }
            Err(error) => note(&error, &mut last_error),
        }
    }
}

/// Logs an error once while it repeats.
fn note(error: &watcher::Error, last: &mut String) {
    let text = crate::words::chain(error);
    if *last != text {
        tracing::warn!(error = text, kind = %GpuNode::kind(&()), "cannot watch; retrying");
        *last = text;
    }
}
