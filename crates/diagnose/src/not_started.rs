//! Containers that NVIDIA's runtime hook does not start. Only kubelet's Events contain its error.

use std::time::Duration;

use gpu_operator_plan::time::later;
use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};
use kube::ResourceExt;

/// Kubelet retries at least this often: an older error no longer applies.
const STANDS: Duration = Duration::from_mins(20);

/// A container that the driver is too old for, by the requirements of its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotStarted {
    container: Option<String>,
    node: Option<String>,
    /// The requirement, such as `cuda>=12.8`.
    condition: String,
    /// When it was last reported.
    at: Timestamp,
}

impl NotStarted {
    /// Parses an Event of a pod. The text is libnvidia-container's. Conditions on a GPU's brand or architecture do not concern CUDA and
    /// are ignored.
    pub fn of(event: &Event) -> Option<Self> {
        let is_failure = event.reason.as_deref() == Some("Failed");
        let message = event.message.as_deref().filter(|_| is_failure)?;
        let (_, rest) = message.split_once("unsatisfied condition: ")?;
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && !"<>=!.".contains(letter));
        let condition = &rest[..end.unwrap_or(rest.len())];
        if !["cuda", "driver"].iter().any(|name| condition.starts_with(name)) {
            return None;
        }
        let times = [event.last_timestamp.as_ref().map(|time| time.0), event.event_time.as_ref().map(|time| time.0)];
        let of_series = event.series.as_ref().and_then(|series| Some(series.last_observed_time.as_ref()?.0));
        let created = event.creation_timestamp().map(|time| time.0);
        // Such as spec.containers{main}.
        let field = event.involved_object.field_path.as_deref();
        Some(Self {
            container: field.and_then(|path| Some(path.split_once('{')?.1.trim_end_matches('}').to_owned())),
            node: event.source.as_ref().and_then(|source| source.host.clone()),
            condition: condition.to_owned(),
            at: times.into_iter().flatten().chain(of_series).chain(created).max()?,
        })
    }

    pub fn stands_at(&self, now: Timestamp) -> bool {
        now < later(self.at, STANDS)
    }

    pub fn message(&self) -> String {
        let Self { container, node, condition, .. } = self;
        let container = container.as_ref().map_or_else(String::new, |name| format!(" {name}"));
        let node = node.as_ref().map_or_else(|| "its node".to_owned(), |name| format!("node {name}"));
        format!(
            "the container runtime does not start container{container}: its image requires {condition}, and the driver of {node} does \
             not satisfy this; use an image for an earlier CUDA version, or install a newer driver on the node. The node's label \
             gpu.nodestack.dev/cuda-version has the CUDA version that its driver supports"
        )
    }
}
