//! ClusterGpuPolicy: what a user wants of the GPU nodes. Every field has a meaning when absent, so that the smallest
//! useful policy is `spec: {}`.

mod compatibility;
mod device_plugin;
mod driver;
mod mig;
mod model;
mod operand;
mod plugin_flags;
mod proxy;
mod toolkit;
mod validation;

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Toleration, apimachinery::pkg::util::intstr::IntOrString};
use kube::{CustomResource, KubeSchema, core::Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::{policy_health::Health, selector::Selector};
use crate::{
    policy_status::ClusterGpuPolicyStatus,
    schema::{LabelValue, PriorityClassName, PublishedKey, Tolerated},
};
pub use compatibility::{Compatibility, CompatibleLabels};
pub use device_plugin::{ContainerMetrics, DevicePlugin, Mps, PluginFlavor, Sharing, TimeSlicing};
pub use driver::{ConfigMapFiles, Driver, DriverConfigMaps, DriverSource, KernelModule};
pub use mig::{Mig, MigProfile, MigStrategy};
pub use model::{Architecture, Model, ModelDriver, ModuleSupport};
pub use operand::{Image, Images, Operand, PullPolicy};
pub use plugin_flags::{DeviceIdStrategy, PluginFlags};
pub use proxy::Proxy;
pub use toolkit::{ContainerRuntime, Distribution, Injection, RuntimePaths, Toolkit};
pub use validation::{Validation, ValidationMode};

/// What a user wants of the GPU nodes of a cluster.
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
    doc = "What a user wants of the NVIDIA GPU nodes of a cluster: drivers, container toolkit, device plugin and labels, by pool.",
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("a policy's name is the value of a label: write one of at most 63 characters"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.summary.nodes"),
    printcolumn(name = "GPUs", type_ = "string", json_path = ".status.summary.gpus"),
    printcolumn(name = "Unhealthy", type_ = "integer", json_path = ".status.gpus.unhealthy"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.nodeLabels) || !has(self.pools) || self.pools.all(pool, !has(pool.nodeLabels) || pool.nodeLabels.all(label, !(label.key in self.nodeLabels)))")
        .message("a key in nodeLabels carries the model's name on every node: where a pool gives it another value, write it in the nodeLabels of each pool instead")
        .field_path(".nodeLabels"),
    validation = Rule::new("!has(self.pools) || !has(self.defaults) || !has(self.defaults.driver) || !has(self.defaults.driver.source) || self.defaults.driver.source != 'Preinstalled' || self.pools.all(pool, !has(pool.driver) || has(pool.driver.source) || (!has(pool.driver.version) && !has(pool.driver.image) && !has(pool.driver.kernelModule)))")
        .message("defaults.driver.source is Preinstalled, so that a pool's version, image and kernelModule count for nothing: write source: Container beside them, or remove them")
        .field_path(".pools"),
    validation = Rule::new("!has(self.defaults) || !has(self.defaults.driver) || !has(self.defaults.driver.source) || self.defaults.driver.source != 'RunFile' || (has(self.defaults.driver.image) && has(self.defaults.driver.image.repository)) || (has(self.pools) && self.pools.all(pool, has(pool.driver) && ((has(pool.driver.source) && pool.driver.source != 'RunFile') || (has(pool.driver.image) && has(pool.driver.image.repository)))))")
        .message("source RunFile has no default image: write image.repository and image.tag of an installer that was built for the nodes' system, such as this project's images/run-file")
        .field_path(".defaults"),
    validation = Rule::new("!has(self.pools) || (has(self.defaults) && has(self.defaults.driver) && has(self.defaults.driver.source) && self.defaults.driver.source == 'RunFile') || self.pools.all(pool, !has(pool.driver) || !has(pool.driver.source) || pool.driver.source != 'RunFile' || (has(pool.driver.image) && has(pool.driver.image.repository)))")
        .message("source RunFile has no default image: write image.repository and image.tag of an installer that was built for the nodes' system, such as this project's images/run-file")
        .field_path(".pools")
)]
pub struct ClusterGpuPolicySpec {
    /// Which nodes the policy speaks for at all. Absent: every node with an NVIDIA GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<Selector>,
    /// Further label keys that carry the model's name on every node, beside `gpu.nodestack.dev/model`; for example
    /// `accelerator`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<PublishedKey>", length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub node_labels: Vec<String>,
    /// What other programs write of GPU nodes, written in their place.
    #[serde(default, skip_serializing_if = "is_default")]
    pub compatibility: Compatibility,
    /// Models of GPUs that the catalogue lacks. They count for all policies; of two that say different things of one
    /// model, the older policy's holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub models: Vec<Model>,
    /// Where all images come from.
    #[serde(default, skip_serializing_if = "is_default")]
    pub images: Images,
    /// The way out of the cluster for every container that is put onto nodes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub proxy: Proxy,
    /// What holds for every pool that does not say otherwise.
    #[serde(default, skip_serializing_if = "is_default")]
    pub defaults: Defaults,
    /// Named groups of nodes, in order: the first that matches a node governs it. A node that none matches belongs to
    /// the implicit pool of its model, which is named after the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub pools: Vec<Pool>,
    /// When the policy counts as ready.
    #[serde(default, skip_serializing_if = "is_default")]
    pub readiness: Readiness,
    /// How the health of GPUs is judged, and what becomes of it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub health: Health,
}

/// What holds for every pool that does not say otherwise.
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
    /// What becomes of nodes that somebody else's GPU stack serves. Absent: `Leave`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_stack: Option<ForeignStack>,
    /// Tolerations of all operand pods. Absent: every taint is tolerated, because operands belong on every GPU node;
    /// a list replaces that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<Tolerated>>", length(max = 32))]
    pub tolerations: Option<Vec<Toleration>>,
    /// Priority class of all operand pods. Absent: `system-node-critical`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<PriorityClassName>")]
    pub priority_class_name: Option<String>,
}

/// A named group of nodes and what holds for it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// Its name: lower-case letters, digits and `-`.
    #[schemars(length(min = 1, max = 40))]
    #[x_kube(validation = (
        "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "a pool's name has lower-case letters, digits and '-' only and begins and ends with a letter or digit"
    ))]
    pub name: String,
    /// Which nodes belong to it. Absent: every node of the policy.
    #[serde(rename = "match", default, skip_serializing_if = "is_default")]
    pub matches: PoolMatch,
    /// Labels that every node of the pool carries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into()]))]
    pub node_labels: Vec<NodeLabel>,
    /// How many GPUs each node of the pool has: a promise that readiness is measured by. Absent: the most that were
    /// ever seen on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub gpus_per_node: Option<u32>,
    /// The driver, field by field over `defaults.driver`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub driver: Driver,
    /// The container toolkit, field by field over `defaults.toolkit`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub toolkit: Toolkit,
    /// The device plugin, field by field over `defaults.devicePlugin`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub device_plugin: DevicePlugin,
    /// What becomes of its nodes that somebody else's GPU stack serves. Absent: what `defaults` say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_stack: Option<ForeignStack>,
    /// The health of its GPUs, field by field over the policy's `health`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub health: Health,
}

/// What becomes of a node that somebody else's DaemonSets serve with a driver, a toolkit or a device plugin. Nothing of
/// theirs is ever deleted or changed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForeignStack {
    /// It is theirs for good: none of ours takes the place of what is, or was, theirs. The node is labelled and tracked.
    #[default]
    Leave,
    /// Ours takes its place once theirs is gone from the node. Until then the node says what is to be deleted.
    TakeOver,
}

/// Which nodes belong to a pool: those that fit all that is given.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PoolMatch {
    /// Models, such as `nvidia-tesla-p100`, or another cloud's word for one, such as `t4`; any of them. `mixed` is a node
    /// with GPUs of several models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub models: Vec<String>,
    /// Labels of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<Selector>,
}

/// A label with a value of the user's own.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeLabel {
    /// Any legal label key outside kubernetes.io, k8s.io and gpu.nodestack.dev.
    #[schemars(with = "PublishedKey")]
    pub key: String,
    /// The label's value. Absent: the model's canonical name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<LabelValue>")]
    pub value: Option<String>,
}

/// When the policy counts as ready.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Readiness {
    /// How long a node may stay in one phase before that counts as a failure. Absent: 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self.matches('^([0-9]{1,6}(h|m|s)){1,3}$') && self.matches('[1-9]')",
        "write a duration in hours, minutes and seconds that is longer than nothing, such as 30m or 1h30m"
    ))]
    pub progress_deadline: Option<Duration>,
    /// How many nodes must be ready, as a number or as a percentage of the nodes that can be (not those that are
    /// NotReady, cordoned or being deleted). Absent: 100%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = (
        "string(self).matches('^([0-9]|[1-9][0-9]|100)%$') || self != string(self) && string(self).matches('^[0-9]{1,6}$')",
        "write a number of nodes, such as 3, or a percentage from \"0%\" to \"100%\""
    ))]
    pub min_ready_nodes: Option<IntOrString>,
    /// Whether nodes prove themselves by a short test on a GPU, and when.
    #[serde(default, skip_serializing_if = "is_default")]
    pub validation: Validation,
}

/// The things that are rolled out on a node, in order.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Kernel modules and user-space driver.
    Driver,
    /// Container toolkit.
    Toolkit,
    /// Control daemon of CUDA's MPS, where GPUs are shared by it.
    Mps,
    /// Kubernetes device plugin.
    DevicePlugin,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Self; 4] = [Self::Driver, Self::Toolkit, Self::Mps, Self::DevicePlugin];

    /// Value of the label [`crate::keys::STAGE`], and beginning of the names of the stage's DaemonSets.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Toolkit => "toolkit",
            Self::Mps => "mps",
            Self::DevicePlugin => "device-plugin",
        }
    }

    /// The stage of a word that [`Self::as_str`] gives.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.as_str() == word)
    }

    /// The phase of a node that the stage holds up.
    #[must_use]
    pub fn phase(self) -> crate::Phase {
        match self {
            Self::Driver => crate::Phase::Driver,
            Self::Toolkit => crate::Phase::Toolkit,
            // Without it the plugin does not begin, and nobody else waits for it.
            Self::Mps | Self::DevicePlugin => crate::Phase::DevicePlugin,
        }
    }

    /// The node label that places the stage's pods.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Driver => crate::keys::DRIVER,
            Self::Toolkit => crate::keys::TOOLKIT,
            Self::Mps => crate::keys::MPS,
            Self::DevicePlugin => crate::keys::DEVICE_PLUGIN,
        }
    }
}

/// Labels of a node or object.
pub type Labels = BTreeMap<String, String>;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
