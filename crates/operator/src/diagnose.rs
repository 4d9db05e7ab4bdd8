//! Diagnosis of pods: finds the mistakes that keep pods from getting the GPUs they need, from their specs and from the state of
//! the fleet. These are pure functions of plain facts; [`crate::advise`] watches, reads Events and publishes the findings.
//!
//! A false alarm is worse than silence: only certain findings are reported.

mod class_not_named;
mod cuda;
mod fleet;
mod host_driver;
mod journal;
mod legacy;
mod not_requested;
mod pending;
mod placement;
mod refused;
mod runtime_handler;
mod scheduling;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fleet::Fleet;
use gpu_operator_plan::{output::events::Subject, world::World};
use k8s_openapi::jiff::Timestamp;
use strum::{EnumIter, IntoStaticStr};

pub use journal::Journal;
pub use pending::{Container, DriverMount, PendingPod, State, Wish};
pub use placement::Placement;
pub use refused::{Fault, RefusedPods};

/// How long a pod may wait for a node before it is reported that no node fits: an autoscaler needs some time to announce that
/// it will create one.
pub const NO_PLACE_GRACE: Duration = Duration::from_mins(1);
/// How long a pod that is assigned to a node may take to start before its Events are read.
pub const START_GRACE: Duration = Duration::from_mins(1);

/// What is wrong with a pod. The name is both the reason of the Event and the label value of the metric.
#[derive(IntoStaticStr, EnumIter, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mistake {
    /// It requests `alpha.kubernetes.io/nvidia-gpu`, the GPU resource of early Kubernetes, which nodes no longer offer.
    LegacyGpuResource,
    /// It mounts the driver's libraries or device nodes from its host.
    HostDriverMounted,
    /// It sets `NVIDIA_VISIBLE_DEVICES` but requests no GPU.
    GpuNotRequested,
    /// The API server rejects it: a resource is requested without an equal limit.
    GpuRequestWithoutLimit,
    /// The API server rejects it: its `RuntimeClass` does not exist.
    RuntimeClassMissing,
    /// Its node injects GPUs through NVIDIA's runtime, but it sets no `RuntimeClass` that selects this runtime.
    RuntimeClassNotNamed,
    /// Its node's container runtime has no handler configured for its `RuntimeClass`.
    RuntimeHandlerMissing,
    /// Its image is built for a later CUDA version than the driver supports.
    CudaTooNew,
    /// No node can ever run it.
    NoNodeFits,
    /// The nodes that could run it do not offer their GPUs yet.
    GpuNodesNotReady,
}

impl Mistake {
    /// Returns the name, such as `NoNodeFits`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns whether a user has to fix the pod or the fleet. Findings that resolve by themselves are Normal Events.
    #[must_use]
    pub fn is_warning(self) -> bool {
        self != Self::GpuNodesNotReady
    }
}

/// A mistake in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The pod, or its owner if the pod could not be created.
    pub subject: Subject,
    /// The uid of the pod's owner, or of the pod itself if it has no owner: pods of one owner have the same mistakes.
    pub family: String,
    /// What is wrong.
    pub reason: Mistake,
    /// The explanation, with what to do.
    pub message: String,
}

/// The reason and message of an Event about a pod, written by another component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voice {
    /// The reason, such as `FailedCreatePodSandBox`.
    pub reason: String,
    /// The message.
    pub message: String,
}

/// The inputs of diagnosis other than the fleet.
#[derive(Clone, Debug, Default)]
pub struct Symptoms {
    /// Pending pods that involve GPUs, by `namespace/name`.
    pub pods: BTreeMap<String, std::sync::Arc<PendingPod>>,
    /// Rejections of pods by the API server, by the Event's `namespace/name`.
    pub refused: BTreeMap<String, std::sync::Arc<RefusedPods>>,
    /// Answers to [`Diagnosis::questions`]: the Events of a pod, by the pod's uid.
    pub voices: BTreeMap<String, Vec<Voice>>,
}

/// The result of diagnosis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// All current mistakes, whether or not they have been reported.
    pub findings: Vec<Finding>,
    /// Pods, by `namespace/name`, whose Events must be read before the diagnosis is certain.
    pub questions: BTreeSet<String>,
    /// When to diagnose again even if nothing changes.
    pub check_again: Option<Timestamp>,
}

impl Diagnosis {
    fn check_by(&mut self, at: Timestamp) {
        self.check_again = Some(self.check_again.map_or(at, |known| known.min(at)));
    }
}

/// Diagnoses all pods.
#[must_use]
pub fn diagnose(symptoms: &Symptoms, world: &World, now: Timestamp) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    let fleet = Fleet::of(world);
    // The pods of a Job or Deployment have the same placement, so the fleet is searched once for all of them.
    let mut places = BTreeMap::new();
    let mut cudas = BTreeMap::new();
    for (key, pod) in &symptoms.pods {
        if pod.state == State::Deleting {
            continue;
        }
        let cuda = cudas.entry((pod.node.as_deref(), pod.wish(), &pod.containers));
        let cuda = cuda.or_insert_with(|| cuda::find(pod, &fleet)).clone();
        let mut found = |reason, message| diagnosis.findings.push(pod.finding(reason, message));
        for (reason, message) in [
            legacy::find(pod).map(|message| (Mistake::LegacyGpuResource, message)),
            host_driver::find(pod).map(|message| (Mistake::HostDriverMounted, message)),
            not_requested::find(pod).map(|message| (Mistake::GpuNotRequested, message)),
            cuda.map(|message| (Mistake::CudaTooNew, message)),
            class_not_named::find(pod, &fleet).map(|message| (Mistake::RuntimeClassNotNamed, message)),
        ]
        .into_iter()
        .flatten()
        {
            found(reason, message);
        }
        let voices = symptoms.voices.get(&pod.uid).map(Vec::as_slice);
        let look = if pod.node.is_some() {
            runtime_handler::look(pod, voices)
        } else {
            let place = places.entry(pod.wish()).or_insert_with(|| scheduling::place(pod, &fleet));
            scheduling::look(place, voices)
        };
        match look {
            Look::Nothing => {}
            // Not before the grace period is over.
            Look::Found(..) | Look::Ask { .. } if pod.due(look.grace()) > now => {
                diagnosis.check_by(pod.due(look.grace()));
            }
            Look::Found(reason, message) => diagnosis.findings.push(pod.finding(reason, message)),
            Look::Ask { .. } => drop(diagnosis.questions.insert(key.clone())),
        }
    }
    for refused in symptoms.refused.values() {
        match refused.stands_until() {
            until if until > now => {
                diagnosis.check_by(until);
                diagnosis.findings.push(refused.finding());
            }
            _ => {}
        }
    }
    // Several Events may report the same mistake of one owner.
    let mut seen = BTreeSet::new();
    diagnosis.findings.retain(|finding| seen.insert((finding.subject.uid().to_owned(), finding.reason)));
    diagnosis
}

/// The result of checking a pod that waits.
enum Look {
    /// There is nothing to report.
    Nothing,
    /// A mistake and its message.
    Found(Mistake, String),
    /// The pod's Events must be read first, once it has waited for the grace period.
    Ask { grace: Duration },
}

impl Look {
    /// Returns how long the pod must have waited before this is acted upon.
    fn grace(&self) -> Duration {
        match self {
            Self::Nothing => Duration::ZERO,
            Self::Found(Mistake::RuntimeHandlerMissing, _) => START_GRACE,
            Self::Found(..) => NO_PLACE_GRACE,
            Self::Ask { grace } => *grace,
        }
    }
}

#[cfg(test)]
mod tests;
