//! Pods that the API server refuses: only the controllers that tried to make them say so, by Events.

use std::time::Duration;

use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};
use kube::ResourceExt;

use super::{Finding, Mistake};
use crate::{moment::later, plan::Subject};

/// Controllers try again at least so often: what was refused longer ago is over.
const STANDS: Duration = Duration::from_mins(20);
/// The controllers' objects whose pods are looked at.
const OWNERS: [&str; 4] = ["ReplicaSet", "Job", "StatefulSet", "DaemonSet"];

/// A refusal of an owner's pods that has to do with GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPods {
    /// The owner.
    pub owner: Subject,
    /// What is wrong with its pods.
    pub fault: Fault,
    /// When they were refused last.
    pub at: Timestamp,
}

/// What the API server finds wrong with a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A resource is requested without a limit. The API server does not name it.
    NoLimit,
    /// Request and limit of this resource differ.
    Unequal(String),
    /// There is no `RuntimeClass` of this name.
    NoRuntimeClass(String),
}

impl RefusedPods {
    /// A refusal by its Event's `namespace/name`; `None` where it has nothing to do with GPUs.
    #[must_use]
    pub fn of(event: &Event) -> Option<(String, Self)> {
        let object = &event.involved_object;
        let kind = object.kind.clone().filter(|kind| OWNERS.contains(&kind.as_str()))?;
        if event.reason.as_deref() != Some("FailedCreate") {
            return None;
        }
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
            fault: Fault::read(event.message.as_deref()?)?,
            at: times.into_iter().flatten().chain(of_series).chain(created).max()?,
        };
        Some((format!("{}/{}", event.namespace().unwrap_or_default(), event.name_any()), refused))
    }

    /// Until when it counts, if it is not said again.
    #[must_use]
    pub fn stands_until(&self) -> Timestamp {
        later(self.at, STANDS)
    }

    /// What to say of it.
    #[must_use]
    pub fn finding(&self) -> Finding {
        let (reason, message) = self.fault.told();
        Finding { subject: self.owner.clone(), family: self.owner.uid().to_owned(), reason, message }
    }
}

impl Fault {
    /// What the API server's words come to. They are those of Kubernetes 1.36's validation and admission.
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

    fn told(&self) -> (Mistake, String) {
        match self {
            Self::NoLimit => (
                Mistake::GpuRequestWithoutLimit,
                "its pods are refused: a container requests an extended resource, such as nvidia.com/gpu, without a limit; \
                 write it under limits, which is request and limit in one. Where the pod's template has none of it, a \
                 LimitRange of the namespace or an admission webhook adds it"
                    .to_owned(),
            ),
            Self::Unequal(resource) => (
                Mistake::GpuRequestWithoutLimit,
                format!(
                    "its pods are refused: request and limit of {resource} differ, and GPUs cannot be overcommitted; write \
                     {resource} under limits alone. Where the pod's template has but one of the two, a LimitRange of the \
                     namespace or an admission webhook adds the other"
                ),
            ),
            Self::NoRuntimeClass(name) => (
                Mistake::RuntimeClassMissing,
                format!(
                    "its pods are refused: there is no RuntimeClass {name}; leave runtimeClassName out where GPUs come by \
                     CDI, which needs none; kubectl get runtimeclasses lists those that there are"
                ),
            ),
        }
    }
}
