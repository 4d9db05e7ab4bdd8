//! What the operator was started with: plain data for the plan.

use std::time::Duration;

/// Settings from the command line.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the operator and of all its children.
    pub namespace: String,
    /// Image of the probe, which is also the image of the gates.
    pub probe_image: String,
    /// When nodes pull that image.
    pub probe_pull_policy: String,
    /// Pull secrets for that image, in [`Self::namespace`].
    pub image_pull_secrets: Vec<String>,
    /// Kubelet's folder on the hosts (its `--root-dir`), where it is not the one that their distribution has.
    pub kubelet_root: Option<String>,
}

/// A passing phase is written to the GpuNode only after the last one has stood for so long: an install that takes
/// seconds to a stage costs two writes of status, one that takes minutes shows where it is.
pub const PASSING: Duration = Duration::from_secs(10);
/// The same for each node that is in such a phase, where that is more in all: two of these writes a second are enough,
/// however many nodes are installed at once. What is wrong with one of them is told at once.
pub const PASSING_PER_NODE: Duration = Duration::from_millis(500);
/// How long a node that has become ready counts as one of those.
pub const JUST_THROUGH: Duration = Duration::from_mins(1);
/// The most that it comes to.
pub const PASSING_AT_MOST: Duration = Duration::from_mins(10);
/// How long a driver's pod is at its guard that only passes by it.
pub const AT_GUARD: Duration = Duration::from_secs(10);
/// How long a driver's container that has started may take until its root is complete.
pub const ROOT_GRACE: Duration = Duration::from_mins(5);
/// What may look like a failure while things start: not before it has lasted for so long.
pub const GRACE: Duration = Duration::from_secs(20);
/// How soon a node that has not reported is called `ProbeMissing`.
pub const REPORT_GRACE: Duration = Duration::from_mins(1);
/// How often a node that waits for its GPU pods to end is asked about again.
pub const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Default of `readiness.validation.timeout`.
pub const VALIDATION_TIMEOUT: Duration = Duration::from_mins(5);
/// How long a validation waits for a GPU that other pods have.
pub const VALIDATION_WAITS: Duration = Duration::from_mins(2);
/// How soon a failed validation is tried again for the first time; then it takes twice as long each time.
pub const VALIDATION_RETRY: Duration = Duration::from_mins(1);
/// The longest that it takes.
pub const VALIDATION_RETRY_AT_MOST: Duration = Duration::from_hours(1);
/// Default of `readiness.progressDeadline`.
pub const PROGRESS_DEADLINE: Duration = Duration::from_mins(30);
