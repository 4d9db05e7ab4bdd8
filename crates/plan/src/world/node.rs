use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{NodeName, keys};
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, NodeRuntimeHandler, Taint, Toleration},
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ManagedFieldsEntry, Time},
    },
    jiff::Timestamp,
};
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::world::{
    observed_time::ObservedTime,
    obstacles::CoWriters,
    partial::Partial,
    resources::Resources,
    taint::{self, TaintFact, TaintWrite},
};

pub type NodeLabels = BTreeMap<Interned, Interned>;

/// A Node without its images, volumes and addresses, which make up most of it.
pub type TrimmedNode = Partial<Node, TrimmedSpec, TrimmedStatus>;

/// With which Cluster Autoscaler and Karpenter (since 1.0, and before) drain a node.
const AUTOSCALER_TAINTS: [&str; 3] =
    ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"];

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct TrimmedSpec {
    unschedulable: bool,
    taints: Vec<Taint>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct TrimmedStatus {
    conditions: Vec<NodeCondition>,
    capacity: BTreeMap<String, Quantity>,
    allocatable: BTreeMap<String, Quantity>,
    node_info: TrimmedInfo,
    runtime_handlers: Vec<NodeRuntimeHandler>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct TrimmedInfo {
    architecture: String,
    #[serde(rename = "bootID")]
    boot_id: String,
    container_runtime_version: String,
    kernel_version: String,
    kubelet_version: String,
}

impl TrimmedNode {
    pub fn is_cordoned(&self) -> bool {
        self.spec.unschedulable
    }

    pub fn taints_after(&self, write: &TaintWrite) -> Vec<Taint> {
        let uid = self.uid().unwrap_or_default();
        let write = write.clone().on(&uid, &self.status.node_info.boot_id);
        write.applied_to(&self.spec.taints, taint::recorded(self.annotations()).as_ref())
    }
}

#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeFacts {
    pub name: NodeName,
    /// Its uid: a Node with the same name and another uid is a different node.
    pub uid: String,
    pub labels: NodeLabels,
    /// Label keys that the operator applied, according to the API server's `managedFields`.
    pub owned_labels: BTreeSet<Interned>,
    /// Other managers that write the same fields.
    pub co_writers: CoWriters,
    pub ready: bool,
    /// Whether kubelet lacks disk space, memory or process IDs, and rejects pods.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_pressure: bool,
    pub cordoned: bool,
    /// Whether this operator cordoned it, according to the annotation [`keys::CORDON`].
    pub own_cordon: bool,
    pub deleting: bool,
    pub created: Option<ObservedTime>,
    /// When this operator set the label [`keys::PRESENT`], which brings the probe.
    pub labelled_present: Option<ObservedTime>,
    /// Its taints, except Kubernetes' own, which follow conditions and which DaemonSet pods tolerate.
    pub taints: Vec<TaintFact>,
    /// The taint of this operator, according to the annotation [`keys::OWN_TAINT`]. Kubelet can write it too, so it counts only if a policy
    /// confirms its key.
    pub own_taint: Option<TaintFact>,
    pub own_conditions: OwnConditions,
    /// The value of its annotation [`keys::GPU_COUNT`].
    pub gpu_count: Option<String>,
    /// Allocatable GPUs and parts of GPUs, by resource name.
    pub allocatable: Resources,
    /// Capacity that is not allocatable, by resource name: devices that a device plugin reports as unhealthy.
    pub withheld: Resources,
    /// The boot ID of its kernel when kubelet started. Empty if kubelet does not report one.
    pub boot_id: Box<str>,
    /// Its processor architecture in Kubernetes' notation, such as `amd64`.
    pub arch: Interned,
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: Interned,
    /// Its container runtime and version in Kubernetes' notation, such as `containerd://2.1.4`.
    pub runtime: Interned,
    /// The handlers of its container runtime, as reported by kubelet; empty with older container runtimes.
    pub runtime_handlers: BTreeSet<Interned>,
    /// Kubelet's version, such as `v1.34.1+k3s1`.
    pub kubelet: Interned,
}

/// The labels of nodes without a host on which the chart's DaemonSet of the probe could run.
const VIRTUAL: [(&str, &str); 2] = [("type", "virtual-kubelet"), ("eks.amazonaws.com/compute-type", "fargate")];
const VIRTUAL_TAINT: &str = "virtual-kubelet.io/provider";
/// Kubelet's label of the operating system.
const OS: &str = "kubernetes.io/os";

/// What kubelet reports as the version while the container runtime does not answer.
const UNKNOWN_VERSION: &str = "://Unknown";

impl NodeFacts {
    /// Whether a label marks it as a node with GPUs, on which a probe runs.
    pub fn is_labelled_present(&self) -> bool {
        self.labels.get(keys::PRESENT).is_some_and(|value| value.as_str() == "true")
    }

    /// Whether a label marks it as a node that has no GPUs any more.
    pub fn is_labelled_absent(&self) -> bool {
        self.labels.get(keys::PRESENT).is_some_and(|value| value.as_str() == "false")
    }

    pub fn runtime_is_silent(&self) -> bool {
        self.runtime.as_str().ends_with(UNKNOWN_VERSION)
    }

    /// Whether a Linux host is behind the Node: not for Windows and virtual kubelets, although clouds label those with GPUs as well.
    pub fn has_linux_host(&self) -> bool {
        let is = |key: &str, value: &str| self.labels.get(key).is_some_and(|found| found.as_str() == value);
        self.labels.get(OS).is_none_or(|os| os.as_str() == "linux")
            && !VIRTUAL.iter().any(|(key, value)| is(key, value))
            && !self.taints.iter().any(|taint| taint.key.as_str() == VIRTUAL_TAINT)
    }

    /// Whether it is a Jetson, whose GPU is not on the PCI bus, by the suffix of NVIDIA's kernels for Tegra.
    pub fn is_jetson(&self) -> bool {
        self.kernel.as_str().ends_with("-tegra")
    }

    pub fn of(node: &TrimmedNode) -> Self {
        let TrimmedStatus { conditions, capacity, allocatable, node_info, runtime_handlers } = &node.status;
        let allocatable = Resources::of(allocatable);
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
        let has_pressure = conditions.iter().any(|found| found.type_.ends_with("Pressure") && found.status == "True");
        Self {
            name: node.name_any().into(),
            uid: node.uid().unwrap_or_default(),
            created: node.creation_timestamp().map(|time| time.0.into()),
            labelled_present: labelled_present(node),
            taints: taint::lasting(&node.spec.taints).collect(),
            own_taint: taint::recorded(node.annotations()),
            own_conditions: own(conditions),
            gpu_count: node.annotations().get(keys::GPU_COUNT).cloned(),
            labels: node.labels().iter().map(|(key, value)| (Interned::from(key), Interned::from(value))).collect(),
            co_writers: CoWriters::of(node.managed_fields()),
            owned_labels: owned_labels(node).map(Interned::from).collect(),
            ready: ready.is_some_and(|ready| ready.status == "True"),
            has_pressure,
            cordoned: node.spec.unschedulable,
            own_cordon: node.annotations().contains_key(keys::CORDON),
            deleting: node.meta().deletion_timestamp.is_some(),
            withheld: Resources::of(capacity).without(&allocatable),
            allocatable,
            boot_id: node_info.boot_id.as_str().into(),
            arch: Interned::from(&node_info.architecture),
            kernel: Interned::from(&node_info.kernel_version),
            runtime: Interned::from(&node_info.container_runtime_version),
            runtime_handlers: runtime_handlers
                .iter()
                .filter_map(|handler| handler.name.as_deref())
                .filter(|name| !name.is_empty())
                .map(Interned::from)
                .collect(),
            kubelet: Interned::from(&node_info.kubelet_version),
        }
    }

    pub fn owns(&self, taint: &TaintFact) -> bool {
        taint.is_own(self.own_taint.as_ref())
    }

    /// Returns the taints that keep pods with these tolerations away; this operator's own does so only temporarily.
    pub fn untolerated(&self, tolerations: &[Toleration]) -> impl Iterator<Item = &TaintFact> {
        let tolerated = |taint: &TaintFact| tolerations.iter().any(|toleration| taint.tolerated_by(toleration));
        self.taints.iter().filter(move |taint| taint.keeps_pods_away() && !self.owns(taint) && !tolerated(taint))
    }

    /// Whether the node is being deleted, or an autoscaler drains it to delete it.
    pub fn is_being_removed(&self) -> bool {
        let removes = |taint: &TaintFact| AUTOSCALER_TAINTS.contains(&taint.key.as_str());
        self.deleting || self.taints.iter().any(removes)
    }

    /// Whether the node can be expected to serve pods.
    pub fn serves(&self) -> bool {
        self.ready && !self.cordoned && !self.deleting
    }
}

/// Returns the label keys that this operator owns in `managedFields`, which the API server updates in the same write as the labels.
fn owned_labels(node: &TrimmedNode) -> impl Iterator<Item = &str> {
    node.managed_fields()
        .iter()
        .filter(|entry| entry.manager.as_deref() == Some(keys::LABEL_MANAGER))
        .filter_map(|entry| entry.fields_v1.as_ref()?.0.get("f:metadata")?.get("f:labels")?.as_object())
        .flat_map(|labels| labels.keys().filter_map(|key| key.strip_prefix("f:")))
}

fn labelled_present(node: &TrimmedNode) -> Option<ObservedTime> {
    let is_label = |entry: &&ManagedFieldsEntry| entry.manager.as_deref() == Some(keys::PRESENCE_MANAGER);
    node.managed_fields().iter().find(is_label)?.time.as_ref().map(|time| time.0.into())
}

/// The conditions of a Node that this operator sets, by type.
pub type OwnConditions = BTreeMap<&'static str, OwnCondition>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OwnCondition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    pub reason: String,
    pub message: String,
    pub since: Option<Timestamp>,
}

impl OwnCondition {
    /// Whether both are the same except for the time.
    pub fn says(&self, other: &Self) -> bool {
        (&self.status, &self.reason, &self.message) == (&other.status, &other.reason, &other.message)
    }

    pub fn to_value(&self, kind: &str) -> Value {
        let Self { status, reason, message, since } = self;
        let since = since.map(Time);
        json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
    }
}

impl From<&NodeCondition> for OwnCondition {
    fn from(condition: &NodeCondition) -> Self {
        Self {
            status: condition.status.clone(),
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
            since: condition.last_transition_time.as_ref().map(|time| time.0),
        }
    }
}

pub fn own(conditions: &[NodeCondition]) -> OwnConditions {
    let find = |kind| Some((kind, conditions.iter().find(|condition| condition.type_ == kind)?.into()));
    keys::NODE_CONDITIONS.into_iter().filter_map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_the_machine_are_those_that_kubelet_reports() {
        let node = serde_yaml::from_str(
            "{metadata: {name: a, managedFields: [{manager: gpu-operator/presence, time: '2026-01-02T03:04:05Z'}]}, status: {nodeInfo: {architecture: amd64, bootID: b-1, containerRuntimeVersion: docker://1, kernelVersion: k, kubeletVersion: v1}}}",
        );
        let facts = NodeFacts::of(&node.unwrap());
        let NodeFacts { boot_id, arch, runtime, kernel, kubelet, .. } = &facts;
        assert_eq!(
            (&**boot_id, [arch, runtime, kernel, kubelet].map(Interned::as_str)),
            ("b-1", ["amd64", "docker://1", "k", "v1"])
        );
        assert_eq!(facts.labelled_present.unwrap().reported().to_string(), "2026-01-02T03:04:05Z");
    }
}
