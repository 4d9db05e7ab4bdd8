//! Pods that the API server rejects, and containers that the container runtime does not start. Both are reported only in Events:
//! by the controller that tried to create the pod, and by kubelet that tried to start the container.

use std::time::Duration;

use gpu_operator_plan::{output::events::Subject, time::later, world::ObservedTime};
use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};
use kube::ResourceExt;

use crate::finding::{Finding, Mistake};

/// Controllers retry at least this often: an older rejection no longer applies.
const STANDS: Duration = Duration::from_mins(20);
/// In bytes: a name has at most 253.
const MAX_SIZE: usize = 2048;
/// The kinds of owners whose pods are checked.
const OWNERS: [&str; 4] = ["ReplicaSet", "Job", "StatefulSet", "DaemonSet"];

/// A rejection of an owner's pods, or of a pod's container, that involves GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPods {
    /// The owner, or the pod whose container is not started.
    pub owner: Subject,
    pub fault: Fault,
    /// When it was last reported.
    pub at: ObservedTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A resource is requested without a limit. The API server does not name it.
    NoLimit,
    /// The request and the limit of this resource differ.
    Unequal(String),
    /// No `RuntimeClass` has this name.
    NoRuntimeClass(String),
    /// The driver does not satisfy a requirement of the image.
    Unsatisfied {
        container: Option<String>,
        node: Option<String>,
        /// The requirement, such as `cuda>=12.8`.
        condition: String,
    },
}

impl RefusedPods {
    /// Returns a rejection with its Event's `namespace/name`, or `None` if the Event does not involve GPUs.
    pub fn of(event: &Event) -> Option<(String, Self)> {
        let object = &event.involved_object;
        let kind = object.kind.clone()?;
        let message = event.message.as_deref()?;
        let fault = match (kind.as_str(), event.reason.as_deref()?) {
            ("Pod", "Failed") => Fault::of_container(event, message)?,
            (kind, "FailedCreate") if OWNERS.contains(&kind) => Fault::read(message)?,
            _ => return None,
        };
        let times = [event.last_timestamp.as_ref().map(|time| time.0), event.event_time.as_ref().map(|time| time.0)];
        let of_series = event.series.as_ref().and_then(|series| Some(series.last_observed_time.as_ref()?.0));
        let created = event.creation_timestamp().map(|time| time.0);
        let refused = Self {
            owner: Subject::Namespaced {
                api_version: object.api_version.clone().unwrap_or_default(),
                kind,
                namespace: object.namespace.clone()?,
                name: object.name.clone()?,
                uid: object.uid.clone()?,
            },
            fault,
            at: times.into_iter().flatten().chain(of_series).chain(created).max()?.into(),
        };
        // Objects exist with shorter names and uids only.
        (refused.size() <= MAX_SIZE)
            .then(|| (format!("{}/{}", event.namespace().unwrap_or_default(), event.name_any()), refused))
    }

    fn size(&self) -> usize {
        let owner = match &self.owner {
            Subject::Namespaced { api_version, kind, namespace, name, uid } => {
                [api_version, kind, namespace, name, uid].map(String::len).iter().sum()
            }
            Subject::Node(..) | Subject::GpuNode(..) | Subject::Policy(..) => 0,
        };
        owner + self.fault.size()
    }

    /// Returns when it expires, unless it is reported again.
    pub fn stands_until(&self) -> Timestamp {
        later(self.at.local(), STANDS)
    }

    pub fn finding(&self) -> Finding {
        let (reason, message) = self.fault.reason_and_message();
        Finding { subject: self.owner.clone(), family: self.owner.uid().to_owned(), reason, message }
    }
}

impl Fault {
    /// Parses an error of the API server. The texts are those of validation and admission in Kubernetes 1.34 to 1.37.
    fn read(message: &str) -> Option<Self> {
        if let Some((_, rest)) = message.split_once("RuntimeClass \"") {
            let (name, rest) = rest.split_once('"')?;
            let missing = rest.starts_with(" not found") && name.starts_with("nvidia");
            return missing.then(|| Self::NoRuntimeClass(name.to_owned()));
        }
        let unequal =
            message.split("must be equal to ").skip(1).filter_map(|rest| Some(rest.split_once(" limit of ")?.0));
        if let Some(resource) = unequal.into_iter().find(|resource| resource.starts_with("nvidia.com/")) {
            return Some(Self::Unequal(resource.to_owned()));
        }
        message.contains("Limit must be set for non overcommitable resources").then_some(Self::NoLimit)
    }

    /// Parses the error of NVIDIA's runtime hook about a container that it does not start. The text is
    /// libnvidia-container's. Conditions on a GPU's brand or architecture do not concern CUDA and are ignored.
    fn of_container(event: &Event, message: &str) -> Option<Self> {
        let (_, rest) = message.split_once("unsatisfied condition: ")?;
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && !"<>=!.".contains(letter));
        let condition = &rest[..end.unwrap_or(rest.len())];
        if !["cuda", "driver"].iter().any(|name| condition.starts_with(name)) {
            return None;
        }
        // Such as spec.containers{main}.
        let field = event.involved_object.field_path.as_deref();
        let container = field.and_then(|path| Some(path.split_once('{')?.1.trim_end_matches('}').to_owned()));
        let node = event.source.as_ref().and_then(|source| source.host.clone());
        Some(Self::Unsatisfied { container, node, condition: condition.to_owned() })
    }

    fn size(&self) -> usize {
        match self {
            Self::NoLimit => 0,
            Self::Unequal(name) | Self::NoRuntimeClass(name) => name.len(),
            Self::Unsatisfied { container, node, condition } => {
                [container, node].into_iter().flatten().chain([condition]).map(String::len).sum()
            }
        }
    }

    fn reason_and_message(&self) -> (Mistake, String) {
        match self {
            Self::Unsatisfied { container, node, condition } => {
                let container = container.as_ref().map_or_else(String::new, |name| format!(" {name}"));
                let node = node.as_ref().map_or_else(|| "its node".to_owned(), |name| format!("node {name}"));
                let message = format!(
                    "the container runtime does not start container{container}: its image requires {condition}, and the \
                     driver of {node} does not satisfy this; use an image for an earlier CUDA version, or install a newer \
                     driver on the node. The node's label gpu.nodestack.dev/cuda-version has the CUDA version that its driver \
                     supports"
                );
                (Mistake::CudaTooNew, message)
            }
            Self::NoLimit => (
                Mistake::GpuRequestWithoutLimit,
                "the API server rejects the pods of this object: a container requests an extended resource, such as \
                 nvidia.com/gpu, without a limit; set it under limits, which sets both the request and the limit. If the pod \
                 template does not request it, a LimitRange of the namespace or an admission webhook adds the request"
                    .to_owned(),
            ),
            Self::Unequal(resource) => (
                Mistake::GpuRequestWithoutLimit,
                format!(
                    "the API server rejects the pods of this object: the request and the limit of {resource} differ, but GPUs \
                     cannot be overcommitted; set {resource} under limits only. If the pod template sets only one of the two, \
                     a LimitRange of the namespace or an admission webhook adds the other"
                ),
            ),
            Self::NoRuntimeClass(name) => (
                Mistake::RuntimeClassMissing,
                format!(
                    "the API server rejects the pods of this object: RuntimeClass {name} does not exist; remove \
                     runtimeClassName if GPUs are injected by CDI, which needs no RuntimeClass; otherwise set one that \
                     kubectl get runtimeclasses lists"
                ),
            ),
        }
    }
}
