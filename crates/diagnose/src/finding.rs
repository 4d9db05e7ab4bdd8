//! What diagnosis finds.

use std::time::Duration;

use gpu_operator_plan::output::events::Subject;
use k8s_openapi::api::core::v1::Event;
use strum::{EnumIter, IntoStaticStr};

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
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns whether a user has to fix the pod or the fleet. Findings that resolve by themselves are Normal Events.
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
/// The Event reasons that diagnosis evaluates.
const REASONS: [&str; 3] = [NODE_IS_COMING[0], NODE_IS_COMING[1], SANDBOX_FAILED];

impl PodEvent {
    /// Returns an Event's reason and message, or `None` if diagnosis does not evaluate Events with its reason.
    pub fn of(event: Event) -> Option<Self> {
        let message = event.message.unwrap_or_default();
        let reason = event.reason.filter(|reason| REASONS.contains(&reason.as_str()))?;
        Some(Self { reason, message: message.chars().take(MAX_MESSAGE_LENGTH).collect() })
    }
}
