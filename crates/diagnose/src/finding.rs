//! What diagnosis finds.

use std::time::Duration;

use gpu_operator_plan::output::events::Subject;
use k8s_openapi::api::core::v1::Event;
use strum::{EnumIter, IntoStaticStr};

/// How long a pod waits for a node before the finding that no node fits: an autoscaler needs some time to announce that
/// it will create one.
pub const NO_PLACE_GRACE: Duration = Duration::from_mins(1);

/// How long a pod on a node may take to start before its Events are read.
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
    NoNodeFits,
    /// The nodes that could run it do not offer their GPUs yet.
    GpuNodesNotReady,
}

impl Mistake {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns whether a user has to fix the pod or the fleet. Findings that resolve by themselves are Normal Events.
    pub fn is_warning(self) -> bool {
        self != Self::GpuNodesNotReady
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The pod, or its owner if the pod could not be created.
    pub subject: Subject,
    /// The uid of the pod's owner, or of the pod itself if it has no owner: pods of one owner have the same mistakes.
    pub family: String,
    pub reason: Mistake,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// The reason, such as `FailedCreatePodSandBox`.
    pub reason: String,
    pub message: String,
}

/// The maximum length of a message of an Event, read or written, in characters.
pub const MAX_MESSAGE_LENGTH: usize = 1000;
/// The Event reasons with which autoscalers announce a node for a pod: the cluster autoscaler's and Karpenter's. General
/// knowledge, unverified.
pub const NODE_IS_COMING: [&str; 2] = ["TriggeredScaleUp", "Nominated"];
/// Kubelet's Event reason if the container runtime does not create a pod's sandbox.
pub const SANDBOX_FAILED: &str = "FailedCreatePodSandBox";
const REASONS: [&str; 3] = [NODE_IS_COMING[0], NODE_IS_COMING[1], SANDBOX_FAILED];

impl PodEvent {
    /// Returns `None` if diagnosis does not evaluate Events with this reason.
    pub fn of(event: Event) -> Option<Self> {
        let message = event.message.unwrap_or_default();
        let reason = event.reason.filter(|reason| REASONS.contains(&reason.as_str()))?;
        Some(Self { reason, message: message.chars().take(MAX_MESSAGE_LENGTH).collect() })
    }
}

/// The result of checking a pod that waits.
pub enum Verdict {
    NoMistake,
    Mistake(Mistake, String),
    /// The pod's Events must be read first, once it has waited for the grace period.
    ReadEvents {
        grace: Duration,
    },
}

impl Verdict {
    /// Returns how long the pod must have waited before this is acted upon.
    pub fn grace(&self) -> Duration {
        match self {
            Self::NoMistake => Duration::ZERO,
            Self::Mistake(Mistake::RuntimeHandlerMissing, _) => START_GRACE,
            Self::Mistake(..) => NO_PLACE_GRACE,
            Self::ReadEvents { grace } => *grace,
        }
    }
}
