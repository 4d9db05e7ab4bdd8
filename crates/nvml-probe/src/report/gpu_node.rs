//! Watches this node's GpuNode.

use futures::StreamExt;
use gpu_host::process::error_chain;
use gpu_operator_crd::{gpunode::GpuNode, health::HealthRules, report::Report};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject},
    runtime::{
        WatchStreamExt,
        watcher::{self, watch_object},
    },
};
use tokio::sync::watch;

use crate::health::rules::Rules;

/// What the watch has shown of this node's GpuNode.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum GpuNodeView {
    /// Nothing yet, not even that it does not exist.
    #[default]
    Unknown,
    /// It does not exist.
    Absent,
    /// It exists.
    Present(Box<GpuNodeFields>),
}

/// The fields of its GpuNode that the probe reads. Nothing else is parsed: an operator of another version may write
/// fields and values that this probe does not know, and a request to release the driver must still take effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuNodeFields {
    /// What the operator requests.
    pub requests: Requests,
    /// `spec.driverRoot`.
    pub driver_root: Option<String>,
    /// `spec.health`; the defaults if absent or not readable by this version.
    pub rules: HealthRules,
    /// `status.offeredResources`: the resources by which the node has offered GPUs.
    pub offered_resources: Vec<String>,
    /// Whether it has an owner: the operator has seen its Node.
    pub owned: bool,
    /// `status.report`; `None` if absent or not readable by this version.
    pub report: Option<Report>,
}

/// What the operator requests of the probe.
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

    /// Returns whether the GpuNode exists and has an owner.
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

    /// Returns the rules by which GPUs are evaluated.
    pub fn rules(&self) -> Rules {
        match self {
            Self::Unknown | Self::Absent => Rules::default(),
            Self::Present(fields) => Rules::from(fields.rules.clone()),
        }
    }

    pub fn offered_resources(&self) -> &[String] {
        match self {
            Self::Unknown | Self::Absent => &[],
            Self::Present(fields) => &fields.offered_resources,
        }
    }

    /// Returns the last report.
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
            offered_resources: data
                .pointer("/status/offeredResources")
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

/// Logs an error once while it repeats.
fn log_once(error: &watcher::Error, last: &mut String) {
    let text = error_chain(error);
    if *last != text {
        tracing::warn!(error = text, kind = %GpuNode::kind(&()), "cannot watch; retrying");
        *last = text;
    }
}
