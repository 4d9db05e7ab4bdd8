//! Diagnosis of pods: the mistakes that keep pods from the GPUs they want, found in what their specs say and in what the
//! fleet has. Pure functions of plain facts; [`crate::advise`] watches, asks and tells.
//!
//! A false alarm is worse than silence: what is not certain is not said.

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

/// How long a pod may wait for a place before it is told that there is none: an autoscaler needs a moment to say that it
/// will make one.
pub const NO_PLACE_GRACE: Duration = Duration::from_mins(1);
/// How long a pod that has a node may take to start before its own events are read.
pub const START_GRACE: Duration = Duration::from_mins(1);

/// What is wrong with a pod. The same word is the reason of the Event and the label of the metric.
#[derive(IntoStaticStr, EnumIter, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mistake {
    /// It asks for `alpha.kubernetes.io/nvidia-gpu`, the GPU resource of early Kubernetes, which no node offers any more.
    LegacyGpuResource,
    /// It takes the driver's libraries or device nodes from its host.
    HostDriverMounted,
    /// It sets `NVIDIA_VISIBLE_DEVICES` and asks for no GPU.
    GpuNotRequested,
    /// The API server refuses it: a resource is requested without an equal limit.
    GpuRequestWithoutLimit,
    /// The API server refuses it: its `RuntimeClass` does not exist.
    RuntimeClassMissing,
    /// Its node gives GPUs by NVIDIA's runtime, and it names no `RuntimeClass` for that.
    RuntimeClassNotNamed,
    /// Its node's container runtime has nothing configured for its `RuntimeClass`.
    RuntimeHandlerMissing,
    /// Its image is made for a later CUDA version than the driver serves.
    CudaTooNew,
    /// No node can ever take it.
    NoNodeFits,
    /// The nodes that could take it do not offer their GPUs yet.
    GpuNodesNotReady,
}

impl Mistake {
    /// The word itself.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether somebody has to mend the pod or the fleet; what time mends is a Normal Event.
    #[must_use]
    pub fn is_warning(self) -> bool {
        self != Self::GpuNodesNotReady
    }
}

/// A mistake that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whose it is: the pod, or its owner where the pod could not be made.
    pub subject: Subject,
    /// The uid of the pod's owner, or the pod's own where it has none: pods of one owner make the same mistake.
    pub family: String,
    /// In one word.
    pub reason: Mistake,
    /// In a sentence that says what to do.
    pub message: String,
}

/// What somebody else's Event says of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voice {
    /// Its reason, such as `FailedCreatePodSandBox`.
    pub reason: String,
    /// Its message.
    pub message: String,
}

/// What diagnosis knows beside the fleet.
#[derive(Clone, Debug, Default)]
pub struct Symptoms {
    /// Pending pods that have to do with GPUs, by `namespace/name`.
    pub pods: BTreeMap<String, std::sync::Arc<PendingPod>>,
    /// What the API server said when it refused pods, by the Event's `namespace/name`.
    pub refused: BTreeMap<String, std::sync::Arc<RefusedPods>>,
    /// Answers to [`Diagnosis::questions`]: what Events say of a pod, by the pod's uid.
    pub voices: BTreeMap<String, Vec<Voice>>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// All mistakes that stand, whether or not they have been told.
    pub findings: Vec<Finding>,
    /// Pods, by `namespace/name`, whose own Events have to be read before more can be said.
    pub questions: BTreeSet<String>,
    /// When to look again even if nothing changes.
    pub check_again: Option<Timestamp>,
}

impl Diagnosis {
    fn check_by(&mut self, at: Timestamp) {
        self.check_again = Some(self.check_again.map_or(at, |known| known.min(at)));
    }
}

/// Finds the mistakes in all pods.
#[must_use]
pub fn diagnose(symptoms: &Symptoms, world: &World, now: Timestamp) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    let fleet = Fleet::of(world);
    // The pods of a Job or Deployment want the same place: one look at the fleet does for all of them.
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
            // Not before the grace is over.
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
    // Several Events may say the same of one owner.
    let mut seen = BTreeSet::new();
    diagnosis.findings.retain(|finding| seen.insert((finding.subject.uid().to_owned(), finding.reason)));
    diagnosis
}

/// What a look at a pod that waits comes to.
enum Look {
    /// There is nothing to say.
    Nothing,
    /// A mistake, and its message.
    Found(Mistake, String),
    /// The pod's own Events have to be read first; once it has waited for so long.
    Ask { grace: Duration },
}

impl Look {
    /// How long the pod has to have waited.
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
