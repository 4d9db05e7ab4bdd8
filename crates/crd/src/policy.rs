//! ClusterGpuPolicy: the desired configuration of the cluster's GPU nodes. Every field is optional; the smallest useful
//! policy is `spec: {}`.

mod allocation;
mod compatibility;
mod device_plugin;
mod driver;
mod mig;
mod model;
mod operand;
mod readiness;
mod rollout;
mod toolkit;

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use k8s_openapi::api::core::v1::Toleration;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    keys,
    names::PoolName,
    open::is_default,
    policy_status::ClusterGpuPolicyStatus,
    schema::{LabelValue, PodAnnotations, PodLabels, PriorityClassName, PublishedKey, Tolerated},
};
pub use crate::{
    policy_health::{Health, OnUnhealthy, TaintEffect, UnhealthyTaint},
    selector::Selector,
    stage::Stage,
};
pub use allocation::{Allocation, AllocationMode};
pub use compatibility::{Compatibility, CompatibleLabels};
pub use device_plugin::{DevicePlugin, ExternalPlugin, GooglePlugin, Mps, PluginFlavor, Sharing, TimeSlicing};
pub use driver::{
    CloudInstaller, ConfigMapFiles, Driver, DriverChannel, DriverConfigMaps, DriverContainer, DriverSource,
    KernelModule, Preinstalled, RunFile,
};
pub use mig::{Mig, MigLayoutEntry, MigMode, MigProfile, MigStrategy};
pub use model::{Architecture, Model, ModelDriver, ModuleSupport};
pub use operand::{Image, Images, Operand, Proxy, PullPolicy, PullSecret};
pub use readiness::{Readiness, StartupTaint, Validation, ValidationMode};
pub use rollout::{Canary, Eviction, GpuPodsMode, OnFailure, RolloutGpuPods, RolloutStrategy, RolloutWindow, Weekday};
pub use toolkit::{ContainerRuntime, Distribution, Injection, RuntimePaths, Toolkit};

/// The desired configuration of a cluster's GPU nodes.
#[derive(CustomResource, Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "gpu.nodestack.dev",
    version = "v1alpha1",
    kind = "ClusterGpuPolicy",
    plural = "clustergpupolicies",
    shortname = "cgp",
    category = "gpu",
    status = "ClusterGpuPolicyStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "The desired configuration of a cluster's NVIDIA GPU nodes: driver, container toolkit, device plugin and labels, by pool.",
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("a policy's name is used as a label value: write a name of at most 63 characters"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.summary.status"),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.summary.nodes"),
    printcolumn(name = "Updated", type_ = "string", json_path = ".status.summary.updated"),
    printcolumn(name = "GPUs", type_ = "string", json_path = ".status.summary.gpus"),
    printcolumn(name = "Unhealthy", type_ = "integer", json_path = ".status.gpus.unhealthy"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.summary.reason"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.summary.message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::structural::keep)]
#[x_kube(
    validation = Rule::new("!has(self.nodeLabels) || !has(self.pools) || self.pools.all(pool, !has(pool.nodeLabels) || pool.nodeLabels.all(label, !self.nodeLabels.exists(of_all, of_all.key == label.key)))")
        .message("a key cannot be both in spec.nodeLabels, which applies to all pools, and in a pool's nodeLabels: remove it from spec.nodeLabels and write it in the nodeLabels of each pool")
        .field_path(".nodeLabels"),
    validation = Rule::new("!has(self.pools) || self.pools.all(pool, self.pools.exists_one(other, other.name == pool.name))")
        .message("two pools have the same name: give each pool its own")
        .field_path(".pools")
)]
pub struct ClusterGpuPolicySpec {
    /// Selects the nodes that the policy governs. Defaults to every node with an NVIDIA GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<Selector>,
    /// Of several policies that select a node, the one with the highest priority governs it, and of several with the same priority
    /// the oldest. Defaults to 0.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: i32,
    /// When the GPU stack of a node is removed that the policy no longer governs, because the policy is deleted, its
    /// `nodeSelector` no longer matches the node, or the node's label `gpu.nodestack.dev/managed` excludes it. Defaults
    /// to `WhenIdle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,
    /// Additional labels that are set on every node, such as `accelerator` with the name of the node's model. The label
    /// `gpu.nodestack.dev/model` is always set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into()]))]
    pub node_labels: Vec<NodeLabel>,
    /// Settings for compatibility with programs that expect the output of other GPU components.
    #[serde(default, skip_serializing_if = "is_default")]
    pub compatibility: Compatibility,
    /// GPU models that the built-in catalogue lacks. They apply to all policies. If two policies define the same model
    /// differently, the definition of the policy with the higher priority applies, otherwise that of the older one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub models: Vec<Model>,
    /// The source of all images.
    #[serde(default, skip_serializing_if = "is_default")]
    pub images: Images,
    /// Labels and annotations of the operand pods, in addition to those of the operator. A change applies to pods that are
    /// created afterwards; it recreates none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pod_metadata: PodMetadata,
    /// Proxy settings for the containers that the policy places on nodes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub proxy: Proxy,
    /// Settings of the pools that do not set them. A member that a pool sets replaces the one in `defaults` as a whole.
    #[serde(default, skip_serializing_if = "is_default")]
    pub defaults: Defaults,
    /// Named groups of nodes, in order of precedence: the first pool that matches a node governs it. A node that
    /// matches no pool belongs to an implicit pool that is named after the node's model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub pools: Vec<Pool>,
    /// The criteria by which the policy counts as ready, and how schedulers learn that a node is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub readiness: Readiness,
    /// The rules by which the health of GPUs is judged, and the consequences for the node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub health: Health,
    /// How nodes move to a new revision.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rollout: RolloutStrategy,
}

impl ClusterGpuPolicySpec {
    /// Returns the labels that are set on the nodes of these pools.
    pub fn labels_of<'s>(&'s self, pools: impl IntoIterator<Item = &'s Pool>) -> impl Iterator<Item = &'s NodeLabel> {
        self.node_labels.iter().chain(pools.into_iter().flat_map(|pool| &pool.node_labels))
    }

    /// Returns the settings of all pools, and those of pools that have none.
    pub fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        self.pools.iter().filter_map(|pool| pool.allocation.as_ref()).chain([&self.defaults.allocation])
    }

    /// Returns the keys of the taints that nodes of the policy and its pools can get, except the default key.
    pub fn taint_keys(&self) -> BTreeSet<&str> {
        let settings = iter::once(&self.health).chain(self.pools.iter().filter_map(|pool| pool.health.as_ref()));
        let named = settings.filter_map(|health| health.on_unhealthy.taint.as_ref()).map(UnhealthyTaint::key);
        named.filter(|key| *key != keys::UNHEALTHY_TAINT).collect()
    }
}

/// Labels and annotations of pods.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodMetadata {
    /// Labels. Keys of gpu.nodestack.dev, and `app.kubernetes.io/managed-by`, are set by the operator.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "PodLabels")]
    pub labels: BTreeMap<String, String>,
    /// Annotations. Keys of gpu.nodestack.dev are set by the operator.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "PodAnnotations")]
    pub annotations: BTreeMap<String, String>,
}

/// Settings of the pools that do not set them. A member that a pool sets replaces the one in `defaults` as a whole.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Defaults {
    /// The driver.
    #[serde(default, skip_serializing_if = "is_default")]
    pub driver: Driver,
    /// The container toolkit.
    #[serde(default, skip_serializing_if = "is_default")]
    pub toolkit: Toolkit,
    /// The device plugin.
    #[serde(default, skip_serializing_if = "is_default")]
    pub device_plugin: DevicePlugin,
    /// How pods get the GPUs. `devicePlugin` applies only to pools with mode `DevicePlugin`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allocation: Allocation,
    /// The treatment of nodes with a third-party GPU stack. Defaults to `Leave`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_stack: Option<ForeignStack>,
    /// Tolerations of all operand pods. A list replaces the default, which tolerates every taint because operands
    /// belong on every GPU node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<Tolerated>>", length(max = 32))]
    pub tolerations: Option<Vec<Toleration>>,
    /// Priority class of all operand pods. Defaults to `system-node-critical`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<PriorityClassName>")]
    pub priority_class_name: Option<String>,
}

/// A named group of nodes and its settings.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "!has(self.devicePlugin) || !has(self.allocation) || !has(self.allocation.mode) || self.allocation.mode != 'DRA'",
    "allocation.mode DRA replaces the device plugin: remove devicePlugin from the pool, or write allocation.mode: DevicePlugin"
))]
pub struct Pool {
    /// Name of the pool. It may contain lower-case letters, digits and `-`.
    #[schemars(length(min = 1, max = 40))]
    #[x_kube(validation = (
        "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "a pool's name may contain only lower-case letters, digits and '-', and must start and end with a letter or digit"
    ))]
    pub name: PoolName,
    /// Selects the nodes of the pool. Defaults to every node of the policy.
    #[serde(rename = "match", default, skip_serializing_if = "is_default")]
    pub matches: PoolMatch,
    /// Labels that are set on every node of the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into()]))]
    pub node_labels: Vec<NodeLabel>,
    /// The number of GPUs that each node of the pool must have to be ready. Defaults to the most GPUs ever seen on the
    /// node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub gpus_per_node: Option<u32>,
    /// The driver. Defaults to `defaults.driver`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<Driver>,
    /// The container toolkit. Defaults to `defaults.toolkit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toolkit: Option<Toolkit>,
    /// The device plugin. Defaults to `defaults.devicePlugin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_plugin: Option<DevicePlugin>,
    /// How pods get the GPUs of the pool. Defaults to `defaults.allocation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// The treatment of the pool's nodes with a third-party GPU stack. Defaults to `defaults.foreignStack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_stack: Option<ForeignStack>,
    /// Tolerations of the pool's operand pods. Defaults to `defaults.tolerations`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<Tolerated>>", length(max = 32))]
    pub tolerations: Option<Vec<Toleration>>,
    /// Priority class of the pool's operand pods. Defaults to `defaults.priorityClassName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<PriorityClassName>")]
    pub priority_class_name: Option<String>,
    /// The health rules of the pool's GPUs. Defaults to the policy's `health`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// How nodes of the pool move to a new revision. Defaults to the policy's `rollout`, whose `maxParallel`, `maxUnavailable` and
    /// `paused` apply in addition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStrategy>,
}

/// When the GPU stack of a node is removed that its policy no longer governs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionPolicy {
    /// After a minute, and not before the last pod that uses a GPU of the node has ended. If the policy governs the node
    /// again before that, nothing changes on the node.
    #[default]
    WhenIdle,
    /// Immediately, even if pods use GPUs. These pods may fail.
    Now,
}

/// The treatment of a node on which third-party DaemonSets provide a driver, a toolkit or a device plugin. Third-party
/// objects are never deleted or changed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForeignStack {
    /// The third-party stack stays in charge: the operator installs no component that the third party provides or has
    /// provided. The node is labelled and monitored.
    #[default]
    Leave,
    /// The operator installs its own component once the third-party component is gone from the node. Until then the
    /// node's message names the object to delete.
    TakeOver,
}

/// Selects the nodes of a pool. A node must meet all criteria that are set.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PoolMatch {
    /// GPU models, such as `nvidia-tesla-p100`, or a cloud's name for one, such as `t4`. A node matches if it has any
    /// of them. `mixed` matches nodes with GPUs of several models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub models: Vec<String>,
    /// Selects nodes by their labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<Selector>,
}

/// A label and its value.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeLabel {
    /// The label's key. Keys of kubernetes.io, k8s.io and gpu.nodestack.dev are reserved.
    #[schemars(with = "PublishedKey")]
    pub key: String,
    /// The label's value. Defaults to the canonical name of the node's model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<LabelValue>")]
    pub value: Option<String>,
}

/// Labels of a node or object.
pub type Labels = BTreeMap<String, String>;
