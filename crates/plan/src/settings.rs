//! The operator's settings and time limits: plain data for the plan.

use std::time::Duration;

/// Settings from the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Namespace of the operator and of all objects that it creates.
    pub namespace: String,
    /// Image of the probe, which also contains the gates and the other programs in the operands' pods.
    pub probe_image: String,
    pub probe_pull_policy: String,
    /// Pull secrets for that image, in [`Self::namespace`].
    pub image_pull_secrets: Vec<String>,
    /// Kubelet's root directory on the hosts (its `--root-dir`), if it differs from the default of their distribution.
    pub kubelet_root: Option<String>,
    /// Whether the operator has the right to evict pods, which policies may request.
    pub evicts_pods: bool,
    /// Whether the operator is being uninstalled while policies stay; see [`crate::quiet`].
    pub quiets: bool,
}

/// How long the guard takes when the driver is not in use.
pub const GUARD_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time from the start of a driver's container until its root is complete.
pub const ROOT_GRACE: Duration = Duration::from_mins(5);
/// How long a state that is normal during startup has to last to count as a failure.
pub const GRACE: Duration = Duration::from_secs(20);
/// How long a stage of a ready node may be broken before the node is no longer ready: restarting a pod takes seconds.
pub const STAGE_GRACE: Duration = Duration::from_mins(1);
/// How long GPUs must be allocatable without a device plugin of this operator to be those of another one: kubelet withdraws the GPUs of a
/// plugin that is gone within seconds.
pub const PLUGIN_GRACE: Duration = Duration::from_mins(2);
/// How long an NVLink fabric may take to come up after the node's boot.
pub const FABRIC_GRACE: Duration = Duration::from_mins(10);
/// How long a node may take to report before its reason is `ProbeMissing`.
pub const REPORT_GRACE: Duration = Duration::from_mins(1);
/// How long a GpuNode may exist before its Node is known: the watch of Nodes may be behind that of GpuNodes.
pub const NODE_GRACE: Duration = Duration::from_mins(1);
/// The interval of checks for changes that no watch reports, such as the GPU pods of a node.
pub const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Default of `readiness.validation.timeout`.
pub const VALIDATION_TIMEOUT: Duration = Duration::from_mins(5);
/// How long a validation waits for a GPU that other pods use.
pub const VALIDATION_WAITS: Duration = Duration::from_mins(2);
/// The delay of the first retry of a failed validation; it doubles with each retry.
pub const VALIDATION_RETRY: Duration = Duration::from_mins(1);
pub const VALIDATION_RETRY_AT_MOST: Duration = Duration::from_hours(1);
/// Default of `readiness.progressDeadline`.
pub const PROGRESS_DEADLINE: Duration = Duration::from_mins(30);
