//! What diagnosis finds.

use std::time::Duration;

use gpu_operator_common::text::shorten;
use strum::{EnumIter, IntoStaticStr};

/// How long a pod waits for a node before the finding that no node fits: an autoscaler needs some time to announce that
/// it will create one.
pub const NO_PLACE_GRACE: Duration = Duration::from_mins(1);

/// How long a pod on a node may take to start.
pub const START_GRACE: Duration = Duration::from_mins(1);

/// What is wrong with a pod.
#[derive(IntoStaticStr, EnumIter, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mistake {
    /// It requests `alpha.kubernetes.io/nvidia-gpu`, the GPU resource of early Kubernetes, which nodes no longer offer.
    LegacyGpuResource,
    /// It mounts the driver's libraries or device nodes from its host.
    HostDriverMounted,
    /// It sets `NVIDIA_VISIBLE_DEVICES` but requests no GPU.
    GpuNotRequested,
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

    /// Returns whether a user has to fix the pod or the fleet, so that it does not resolve by itself.
    pub fn is_warning(self) -> bool {
        self != Self::GpuNodesNotReady
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub reason: Mistake,
    pub message: String,
}

impl Finding {
    pub fn new(reason: Mistake, mut message: String) -> Self {
        shorten(&mut message, MAX_MESSAGE_LENGTH);
        Self { reason, message }
    }
}

/// The maximum length of a message, in characters.
const MAX_MESSAGE_LENGTH: usize = 1000;
/// The Event reasons with which autoscalers announce a node for a pod: the cluster autoscaler's and Karpenter's. General
/// knowledge, unverified.
pub const NODE_IS_COMING: [&str; 2] = ["TriggeredScaleUp", "Nominated"];
/// Kubelet's Event reason if the container runtime does not create a pod's sandbox.
pub const SANDBOX_FAILED: &str = "FailedCreatePodSandBox";

/// The result of checking a pod that waits.
pub enum Verdict {
    NoMistake,
    Mistake(Mistake, String),
    /// Its Events do not show a mistake, or not yet: they may within the grace period.
    Unknown {
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
            Self::Unknown { grace } => *grace,
        }
    }
}
