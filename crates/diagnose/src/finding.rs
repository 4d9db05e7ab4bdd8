//! What diagnosis finds.

use std::time::Duration;

pub use gpu_operator_crd::reason::Mistake;
use gpu_operator_plan::output::events::Subject;
use k8s_openapi::api::core::v1::Event;

/// How long a pod waits for a node before the finding that no node fits: an autoscaler needs some time to announce that
/// it will create one.
pub const NO_PLACE_GRACE: Duration = Duration::from_mins(1);

/// How long a pod on a node may take to start before its Events are read.
pub const START_GRACE: Duration = Duration::from_mins(1);

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
