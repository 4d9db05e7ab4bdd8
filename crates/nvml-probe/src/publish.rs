//! The API rim: this node's own GpuNode, read by one watch, written only when the report differs.

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

/// A request that takes longer has failed: a server behind a black hole must not keep the probe from its node.
const REQUEST: Duration = Duration::from_secs(15);

/// A report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// No configuration, neither a Pod's nor a kubeconfig.
    #[error("no way to the API server is configured")]
    Config(#[from] kube::config::InferConfigError),
    /// The API server refused or could not be reached.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The API server did not answer in time.
    #[error("the API server did not answer within {} s", REQUEST.as_secs())]
    TimedOut,
    /// The report cannot be written as JSON.
    #[error("the report cannot be encoded")]
    Encode(#[from] serde_json::Error),
}

/// A client that names itself.
///
/// # Errors
/// When nothing says where the API server is, or its certificates cannot be used.
pub async fn client() -> Result<Client, PublishError> {
    let mut config = Config::infer().await?;
    let agent = (http::header::USER_AGENT, http::HeaderValue::from_static(crate::USER_AGENT));
    config.headers.push(agent);
    Ok(Client::try_from(config)?)
}

/// What the watch has shown of this node's GpuNode.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Seen {
    /// Nothing yet, not even that it is absent.
    #[default]
    Unknown,
    /// There is none.
    Absent,
    /// It is there.
    Present(Box<Own>),
}

/// What the probe reads of its GpuNode. Nothing else of it is parsed: an operator of another version may write fields
/// and words that this probe does not know, and a request to release the driver must reach it none the less.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Own {
    /// `spec.releaseDriver`.
    pub release: bool,
    /// `spec.driverRoot`.
    pub driver_root: Option<String>,
    /// `spec.health`; the defaults where it is absent or not as this version reads it.
    pub rules: HealthRules,
    /// `status.report`; none where it is absent or not as this version writes it.
    pub report: Option<Report>,
}

impl Seen {
    /// Whether the driver is to be let go; nothing while that is not known.
    #[must_use]
    pub fn release(&self) -> Option<bool> {
        match self {
            Self::Unknown => None,
            Self::Absent => Some(false),
            Self::Present(own) => Some(own.release),
        }
    }

    /// Where the driver lies beside the places that are looked at anyway.
    #[must_use]
    pub fn driver_root(&self) -> Option<&str> {
        match self {
            Self::Unknown | Self::Absent => None,
            Self::Present(own) => own.driver_root.as_deref(),
        }
    }

    /// By what the GPUs are to be judged.
    #[must_use]
    pub fn rules(&self) -> Rules {
        match self {
            Self::Unknown | Self::Absent => Rules::default(),
            Self::Present(own) => Rules::from(own.rules.clone()),
        }
    }

    /// What was reported last.
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
        tracing::warn!(%error, "the rules of health cannot be read; the defaults hold");
        HealthRules::default()
    })
}

/// What came of publishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// Nothing was to be written.
    Nothing,
    /// The report was written.
    Report,
    /// The GpuNode was created and the report written.
    Created,
}

/// Writes one node's report.
#[derive(Debug)]
pub struct Publisher {
    api: Api<DynamicObject>,
    resource: ApiResource,
    node: String,
    settled: Option<Settled>,
}

/// A write whose outcome is known. A server whose schema is older than this probe drops what it does not know, and
/// the stored report then never equals the one that was sent; that is no reason to send it again.
#[derive(Debug)]
struct Settled {
    sent: Report,
    stored: Option<Report>,
}

impl Publisher {
    /// For the GpuNode of the node of that name.
    #[must_use]
    pub fn new(client: Client, node: &str) -> Self {
        let resource = ApiResource::erase::<GpuNode>(&());
        let api = Api::all_with(client, &resource);
        Self { api, resource, node: node.to_owned(), settled: None }
    }

    /// Writes the report unless the GpuNode has it. A node without GPUs gets no GpuNode, but one that exists learns
    /// that it has none.
    ///
    /// # Errors
    /// When the API server refuses, or does not answer in time.
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

/// The operator may have created it meanwhile.
async fn already_there(error: kube::Error) -> Result<(), kube::Error> {
    match error {
        kube::Error::Api(status) if status.is_already_exists() => Ok(()),
        error => Err(error),
    }
}

/// Watches the GpuNode of the node of that name for as long as anyone listens, through any error.
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

/// An error that repeats is said once.
fn note(error: &watcher::Error, last: &mut String) {
    let text = crate::words::chain(error);
    if *last != text {
        tracing::warn!(error = text, kind = %GpuNode::kind(&()), "cannot watch; trying again");
        *last = text;
    }
}
