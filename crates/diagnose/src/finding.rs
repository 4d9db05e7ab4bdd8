//! What diagnosis finds.

use std::time::Duration;

use gpu_operator_common::text::shorten;
pub use gpu_operator_crd::reason::Mistake;

/// How long a pod waits for a node before the finding that no node fits: an autoscaler needs some time to announce that
/// it will create one.
pub const NO_PLACE_GRACE: Duration = Duration::from_mins(1);

/// How long a pod on a node may take to start.
pub const START_GRACE: Duration = Duration::from_mins(1);

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
