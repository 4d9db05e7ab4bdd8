//! How the nodes of a policy move to a new revision.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{KubeSchema, core::Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{open::is_default, selector::Selector};

/// How nodes move to a new revision. The limits of a policy apply to all of its nodes together, those of a pool to the
/// pool's nodes in addition. All other fields of a pool replace those of the policy.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStrategy {
    /// The maximum number of nodes that are updated at a time. Defaults to 1 for a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max_parallel: Option<u32>,
    /// The maximum number of unavailable nodes, as a number or as a percentage, rounded up: those that are being
    /// updated, NotReady, cordoned or being deleted. If it is reached, only nodes that are unavailable anyway are
    /// updated. Defaults to 25% for a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^([1-9]|[1-9][0-9]|100)%$", "minimum" = 1, "maximum" = 999_999))]
    pub max_unavailable: Option<IntOrString>,
    /// The number of failed updates in a pool at which its rollout halts. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max_failures: Option<u32>,
    /// What happens to pods that use the GPUs of a node whose driver, MIG layout or MPS daemon changes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gpu_pods: RolloutGpuPods,
    /// The nodes of a pool that are updated before all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// What happens when a pool's rollout halts because of failures. Defaults to `Halt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
    /// If true, no further update begins. Nodes that only await their pods are uncordoned; others go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// When updates begin: only while one of these windows is open. A node whose pods are awaited when they close is uncordoned and
    /// waits for the next one; all other updates that have begun go on. Defaults to any time, as with a window of 24h every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub windows: Vec<RolloutWindow>,
}

/// A time of the week in which updates begin.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RolloutWindow {
    /// The days on which it opens, in its time zone. It may end on another day. Defaults to every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub days: Vec<Weekday>,
    /// The time of day at which it opens, from 00:00 to 23:59. If the clock skips this time on a day, it opens when the clock has
    /// changed; if the clock shows it twice, it opens at the first of the two.
    #[schemars(length(max = 5))]
    #[x_kube(validation = (
        "self.matches('^([01][0-9]|2[0-3]):[0-5][0-9]$')",
        "write a time of day from \"00:00\" to \"23:59\", such as \"22:00\""
    ))]
    pub start: String,
    /// How long it is open, at most 168h.
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self.matches('^([0-9]{1,6}(h|m|s)){1,3}$') && self.matches('[1-9]') && duration(self) <= duration('168h')",
        "write a duration above zero and of at most 168h in hours, minutes and seconds, such as 6h or 90m"
    ))]
    pub duration: Duration,
    /// The time zone of `days` and `start`: a name of the IANA database, such as `Europe/Berlin`. Defaults to `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = (
        "self.matches('^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$')",
        "write the name of a time zone of the IANA database, such as Europe/Berlin"
    ))]
    pub time_zone: Option<String>,
}

/// A day of the week.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// The nodes of a pool that are updated before all others.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Canary {
    /// Their number, or their percentage of the pool's nodes, rounded up.
    #[schemars(extend("pattern" = "^([1-9]|[1-9][0-9]|100)%$", "minimum" = 1, "maximum" = 999_999))]
    pub nodes: IntOrString,
    /// How long they must work before other nodes are updated. Defaults to no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self.matches('^([0-9]{1,6}(h|m|s)){1,3}$') && self.matches('[1-9]')",
        "write a duration above zero in hours, minutes and seconds, such as 1h or 90m"
    ))]
    pub soak: Option<Duration>,
}

/// What happens when a pool's rollout halts because of failures.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// Nodes keep what they have, until the failures are resolved or the policy changes.
    #[default]
    Halt,
    /// Nodes return to what they had when the pool's last complete rollout had ended, within the same limits.
    RollBack,
}

/// What happens to pods that use the GPUs of a node whose update is pending.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = (
        "!has(self.timeout) || has(self.mode) && self.mode != 'Leave'",
        "timeout has no effect with mode: Leave; write mode: Await, or remove timeout"
    ),
    validation = (
        "!has(self.waitForJobs) && !has(self.barePods) && !has(self.emptyDir) || has(self.mode) && self.mode == 'Evict'",
        "waitForJobs, barePods and emptyDir have an effect only with mode: Evict; write mode: Evict, or remove them"
    )
)]
pub struct RolloutGpuPods {
    /// Defaults to `Leave`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<GpuPodsMode>,
    /// How long a cordoned node waits for its pods. After that the node is uncordoned, and not updated for the same time.
    /// Defaults to 4h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self.matches('^([0-9]{1,6}(h|m|s)){1,3}$') && self.matches('[1-9]')",
        "write a duration above zero in hours, minutes and seconds, such as 4h or 90m"
    ))]
    pub timeout: Option<Duration>,
    /// Pods that are awaited and never evicted, by their labels. The other pods of a node are evicted once these have ended. Defaults to
    /// no pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_jobs: Option<Selector>,
    /// Pods that no controller creates again. Defaults to `Keep`: their nodes wait for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bare_pods: Option<Eviction>,
    /// Pods with an emptyDir volume, whose data an eviction deletes. Defaults to `Keep`: their nodes wait for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<Eviction>,
}

/// Whether pods are evicted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// They are not.
    #[default]
    Keep,
    /// They are.
    Evict,
}

/// What happens to pods that use the GPUs of a node whose update is pending.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuPodsMode {
    /// Nothing: a node is updated when no pod uses its GPUs, and never cordoned.
    #[default]
    Leave,
    /// In its turn the node is cordoned, and its pods are given time to end.
    Await,
    /// In its turn the node is cordoned, and its pods are evicted within the limits of their PodDisruptionBudgets. Pods of DaemonSets are
    /// evicted once the device plugin is gone. The chart must allow it: `operator.evictPods: true`.
    Evict,
}
