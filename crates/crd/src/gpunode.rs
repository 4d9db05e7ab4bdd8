//! GpuNode: the state of one GPU node. There is one object for each node, with the node's name.

mod records;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{
    health::{HealthRules, HealthState},
    names::{PolicyName, PoolName},
    open::{self, Open, is_default},
    report::{HostRuntime, Report},
    schema::HostFolder,
    stage::Phase,
};
pub use records::{DisruptionScope, LastUpdate, Rollout, RolloutStep, StageRevisions, Validated, ValidationResult};

/// The operator's decisions for one node. The operator writes it and overwrites the changes of others; users change the policy.
#[derive(CustomResource, Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "gpu.nodestack.dev",
    version = "v1alpha1",
    kind = "GpuNode",
    plural = "gpunodes",
    shortname = "gn",
    category = "gpu",
    status = "GpuNodeStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "The state of one GPU node: its model, driver, progress and health. It has the name of its Node.",
    printcolumn(name = "Model", type_ = "string", json_path = ".status.model"),
    printcolumn(name = "GPUs", type_ = "string", json_path = ".status.gpus.summary"),
    printcolumn(name = "Driver", type_ = "string", json_path = ".status.report.driver.loaded"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Health", type_ = "string", json_path = ".status.health"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Since", type_ = "date", json_path = ".status.since"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    selectable = ".spec.pool",
    selectable = ".status.phase",
    selectable = ".status.reason"
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::structural::keep)]
pub struct GpuNodeSpec {
    /// The policy that governs the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub policy: Option<PolicyName>,
    /// The pool of that policy that the node belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub pool: Option<PoolName>,
    /// The DaemonSet revisions that the current policy assigns to the node.
    #[serde(default)]
    pub wanted: StageRevisions,
    /// The DaemonSet revisions that the node has, which differ from `wanted` while an update is pending. The operator sets
    /// the node's labels to these revisions, and restores labels that other users change. Absent if it has not set them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<StageRevisions>,
    /// The update in progress, from its start until the node is ready at the new revision. Absent while no update is in
    /// progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// The number of updates of the node that have begun. A slot in the status of a policy is for the next one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub updates_begun: u32,
    /// The last update of the node, for as long as the rollout of its pool lasts; out of date after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update: Option<LastUpdate>,
    /// The time before which no update of the node begins, because the pods that used its GPUs did not end in the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Time>,
    /// Whether the probe must release the driver. The probe confirms the release with `status.report.nvml.state: Released`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub release_driver: bool,
    /// Whether the probe must list the programs that hold the GPUs, in `status.report.driver.holders`, and the pods that have GPUs, in
    /// `status.report.gpuPods`. It is requested while an update is waiting for them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub report_holders: bool,
    /// A directory on the host that contains the driver, in addition to the directories that the probe searches anyway. The
    /// probe loads a library only if it and all directories of its path belong to root and are not writable for other users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostFolder>")]
    pub driver_root: Option<String>,
    /// The rules by which the probe judges the node's GPUs, as configured by the node's policy and pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthRules>,
}

/// The observed state of the node. The probe writes `report`; the operator writes all other fields.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::structural::keep)]
pub struct GpuNodeStatus {
    /// The generation of the spec that the status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The conditions `Ready` and `Stalled` (as defined by kstatus), `DriverReady`, `ToolkitReady`, `DevicePluginReady` and
    /// `Healthy`. Absent if no policy governs the node. Until the node is ready, `Healthy` becomes `True` together with the next change of
    /// the status.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The facts that the probe reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    /// Canonical name of the accelerator model, such as `nvidia-tesla-p100`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub model: Option<String>,
    /// The highest CUDA version that the node's driver supports, such as `13.0`. It is taken from the catalogue for the
    /// branch of the wanted driver; for branches that the catalogue lacks, the driver itself reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub cuda: Option<String>,
    /// The number of GPUs that are expected and of those that are available.
    #[serde(default)]
    pub gpus: GpuCounts,
    /// The health of the node's GPUs: the worst state among them. `Unknown` while the probe does not report.
    #[serde(default, deserialize_with = "open::some_or_default", skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthState>,
    /// The precompiled driver image that does not exist for this node. The driver is compiled on the node for as long
    /// as the policy would use this image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 700))]
    pub missing_image: Option<String>,
    /// The node's progress. Phases of less than ten seconds may be skipped.
    #[serde(default, deserialize_with = "open::or_default")]
    pub phase: Phase,
    /// A one-word reason for the node's state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Open<crate::reason::Reason>>,
    /// A human-readable explanation of the node's state, with the object to inspect or the action to take.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// The pods that the node is waiting for, as `namespace/name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), inner(length(max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub waits_on: Vec<String>,
    /// The time of the last change of phase or reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The time at which the current phase counts as failed: `progressingSince` plus `readiness.progressDeadline` of the policy. Absent
    /// if the node is not waiting for anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// The time from which `deadline` is counted. Absent if the node is not waiting for anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progressing_since: Option<Time>,
    /// The result of the node's last validation. Absent if its policy does not request one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validated>,
    /// Third-party DaemonSets that provide part of the node's GPU stack, as `namespace/name` by stage (`driver`,
    /// `toolkit`, `device-plugin`, or `dra-driver` in place of the last). Entries remain after the DaemonSet is gone,
    /// for as long as the policy's `foreignStack` is `Leave`.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 4), inner(length(max = 317)))]
    pub foreign: std::collections::BTreeMap<String, String>,
    /// The host's own NVIDIA container runtime, which gives containers their GPUs on this node, so that the operator
    /// does not install the toolkit. The entry remains for as long as the policy leaves that runtime in place, whatever
    /// the probe reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_runtime: Option<HostRuntime>,
    /// Whether the host's configuration of the container runtime disables CDI, so that the operator's toolkit enables it. The entry remains
    /// for as long as the toolkit is installed, because the runtime then reports CDI as enabled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cdi_disabled: bool,
    /// The names of extended resources, other than NVIDIA's, under which pods may have been given GPUs of this node: those that its
    /// policy has named in `devicePlugin.resourceName` and that the Node still lists. The driver is not replaced while a pod that
    /// requests one of them runs on the node. The latest name is the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub past_resource_names: Vec<String>,
    /// The labels outside the operator's own prefix that the operator sets on this node because its policy requests
    /// them.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub published_labels: std::collections::BTreeMap<String, String>,
}

impl GpuNodeStatus {
    /// Returns whether the node is ready for GPU pods.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Returns all fields except the probe's report, the health and the conditions, for comparisons.
    pub fn progress(&self) -> impl PartialEq {
        // All fields are listed, so that none is forgotten.
        let Self {
            report: _,
            health: _,
            conditions: _,
            observed_generation,
            model,
            cuda,
            gpus,
            missing_image,
            phase,
            reason,
            message,
            waits_on,
            since,
            deadline,
            progressing_since,
            validation,
            foreign,
            host_runtime,
            cdi_disabled,
            past_resource_names,
            published_labels,
        } = self;
        let state = (observed_generation, phase, reason, message, waits_on, since, deadline, progressing_since);
        let known =
            (missing_image, validation, foreign, host_runtime, cdi_disabled, past_resource_names, published_labels);
        (state, model, cuda, gpus, known)
    }

    /// Returns the reason, if this version knows it.
    pub fn reason(&self) -> Option<crate::reason::Reason> {
        self.reason.as_ref()?.known()
    }

    /// Returns `since` as a timestamp.
    pub fn since(&self) -> Option<Timestamp> {
        self.since.as_ref().map(|time| time.0)
    }
}

/// Counts of GPUs. `expected` and `allocatable` count schedulable units: a GPU shared by four pods counts as four, a
/// GPU with seven MIG devices as seven. All other fields count physical GPUs.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GpuCounts {
    /// The number of units that the node should offer: its GPUs, multiplied by the replicas or MIG devices of each. The
    /// number of GPUs is taken from the Node's annotation `gpu.nodestack.dev/gpu-count`, else from the pool's
    /// `gpusPerNode`, else from the most GPUs ever seen on this Node, else from the cloud's label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<u32>,
    /// The number of units that the Node's status reports as allocatable: `nvidia.com/gpu` and the other names under
    /// which GPUs are offered, such as `nvidia.com/gpu.shared` or `nvidia.com/mig-1g.10gb`.
    #[serde(default)]
    pub allocatable: u32,
    /// Whether NVIDIA's DRA driver of this operator allocates the GPUs to resource claims, or its `ResourceSlices` remain. `allocatable` is
    /// then the number of GPUs that it publishes without a taint, and the Node's status does not list them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_claims: bool,
    /// The expected number of units of each resource, if the node should offer resources other than `nvidia.com/gpu`.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub resources: std::collections::BTreeMap<String, u32>,
    /// The most GPUs ever seen on the PCI bus of the Node with uid `seenOn`. The Node's annotation
    /// `gpu.nodestack.dev/gpu-count` resets it to the current number, and so does a reboot after which all GPUs are of
    /// other models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_seen: Option<u32>,
    /// The PCI addresses of those GPUs. An address without a GPU is the last known address of a missing GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 32)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub seen_at: Vec<String>,
    /// The PCI device ids of those GPUs, each once.
    #[serde(default, rename = "seenDeviceIDs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 16)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub seen_device_ids: Vec<String>,
    /// The `bootID` of the report that showed those GPUs last.
    #[serde(default, rename = "seenBootID", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub seen_boot_id: String,
    /// The uid of the Node that `mostSeen` refers to. Counting starts again for a Node with the same name and another
    /// uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub seen_on: Option<String>,
    /// The number of GPUs that must not be used, as judged by the probe.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unhealthy: u32,
    /// The number of GPUs that work but have a problem.
    #[serde(default, skip_serializing_if = "is_default")]
    pub degraded: u32,
    /// The number of GPUs whose health is currently unknown.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unknown: u32,
    /// `allocatable/expected`, for display.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub summary: String,
}
