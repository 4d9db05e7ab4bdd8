//! What a write changes, and what it makes of it.

use std::fmt;

use gpu_operator_crd::{
    ClusterGpuPolicyStatus, GpuNodeSpec, GpuNodeStatus,
    gpunode::StageRevisions,
    keys,
    policy::Labels,
    policy_status::{PoolRollout, Slot},
};
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::Pod, node::v1::RuntimeClass},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use serde::Serialize;

use crate::world::{OwnConditions, TaintWrite};

/// What a write changes: an object, or a part of one that has its own field manager.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Target {
    /// The object's kind.
    pub kind: Kind,
    /// The part of the object.
    pub part: Part,
    /// The object's name.
    pub name: String,
}

/// The kind of an object. Namespaced ones are in the operator's namespace.
#[derive(strum::IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Kind {
    ClusterGpuPolicy,
    DaemonSet,
    GpuNode,
    Node,
    Pod,
    RuntimeClass,
}

/// The part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Part {
    /// The object as a whole, without its status.
    Object,
    /// The finalizer of this operator.
    Finalizer,
    /// The labels that this operator sets.
    Labels,
    /// The label of nodes with GPUs.
    Presence,
    /// The conditions that this operator sets.
    Conditions,
    Taints,
    /// The cordon of this operator.
    Cordon,
    /// The ledger of disruptions in the status.
    Ledger,
    Status,
    /// The eviction of a pod.
    Eviction,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, part, name } = self;
        let kind = match kind {
            Kind::ClusterGpuPolicy => "policy",
            Kind::Node => "node",
            Kind::Pod => "pod",
            kind => kind.as_str(),
        };
        match part {
            Part::Object | Part::Eviction => write!(f, "{kind} {name}"),
            Part::Finalizer => write!(f, "the finalizer of {kind} {name}"),
            Part::Labels => write!(f, "this operator's labels of {kind} {name}"),
            Part::Presence => write!(f, "label {} of {kind} {name}", keys::PRESENT),
            Part::Conditions => write!(f, "this operator's conditions of {kind} {name}"),
            Part::Taints => write!(f, "the taints of {kind} {name}"),
            Part::Cordon => write!(f, "this operator's cordon of {kind} {name}"),
            Part::Ledger => write!(f, "the ledger of {kind} {name}"),
            Part::Status => write!(f, "the status of {kind} {name}"),
        }
    }
}

impl Kind {
    /// Returns the name, such as `DaemonSet`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What a write makes of its target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Body {
    /// Sets or removes the finalizer of the policy with this uid.
    Finalizer {
        /// The UID of the policy, because it may have been deleted and created again by the same name.
        uid: String,
        /// Whether to add or remove it.
        present: bool,
    },
    /// Applies the status of a policy, without its ledger.
    PolicyStatus(Box<ClusterGpuPolicyStatus>),
    /// Applies the ledger of a policy, unless the policy has changed since.
    Ledger(Box<LedgerWrite>),
    /// Applies a DaemonSet.
    DaemonSet(Box<DaemonSetWrite>),
    /// Applies a RuntimeClass.
    RuntimeClass(Box<RuntimeClass>),
    /// Applies spec and owner of a GpuNode; creates it if it does not exist.
    Spec(Box<SpecWrite>),
    /// Applies the status of a GpuNode, without the probe's report.
    Status(Box<GpuNodeStatus>),
    /// Applies the labels of a Node.
    Labels(LabelWrite),
    /// Sets the label that a Node has GPUs, or none any more.
    Presence(bool),
    /// Applies the conditions of a Node.
    Conditions(OwnConditions),
    /// Sets or removes the taint of unhealthy GPUs of a Node, and removes its startup taints.
    Taints(TaintWrite),
    /// Cordons a Node with a record of that, or undoes a cordon with such a record.
    Cordon(bool),
    Pod(Box<Pod>),
    /// Evicts a pod, which is named `namespace/name`, if it has this uid.
    Eviction(String),
    /// Deletes the object, if it has this uid.
    Delete(Option<String>),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DaemonSetWrite {
    /// The desired DaemonSet.
    pub set: DaemonSet,
    /// Whether third-party additions must be removed as well: applying restores only this operator's fields.
    pub whole: bool,
    /// The generation of the present DaemonSet.
    #[serde(skip)]
    pub generation: Option<i64>,
}

/// The write of a GpuNode's spec.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpecWrite {
    pub spec: GpuNodeSpec,
    /// The owner: the Node.
    pub owner: OwnerReference,
    /// The UID of the GpuNode, because it may have been deleted and created again by the same name; `None` to create it.
    #[serde(skip)]
    pub uid: Option<String>,
    /// The groups that `spec.current` did not name before. They are recorded only if their DaemonSets exist: groups that never had a
    /// pod would later be restored.
    #[serde(skip)]
    pub records: StageRevisions,
    /// The generation of the GpuNode for which the write was planned: an earlier plan must not undo what a later one has begun.
    #[serde(skip)]
    pub generation: Option<i64>,
    /// Whether it begins or ends an update, which the ledger of the policy has to know first.
    #[serde(skip)]
    pub follows_ledger: bool,
}

/// The write of a policy's ledger.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LedgerWrite {
    pub slots: Vec<Slot>,
    /// What is remembered of pools.
    pub pools: Vec<PoolRollout>,
    /// The UID of the policy, because it may have been deleted and created again by the same name.
    #[serde(skip)]
    pub uid: String,
    /// The generation of the policy for which the write was planned.
    #[serde(skip)]
    pub generation: Option<i64>,
    /// The ledger for which the write was planned.
    #[serde(skip)]
    pub before: (Vec<Slot>, Vec<PoolRollout>),
}

/// One write to a Node: all the labels that this operator then owns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabelWrite {
    /// The UID of the Node, because the Node may have been deleted or recreated by the same name.
    pub uid: String,
    /// The complete set; labels that were applied before and are not in it are removed.
    pub labels: Labels,
    /// Whether to take keys over from other writers. Never if a user's key is published for the first time.
    pub force: bool,
    /// The groups that the labels named when the write was planned: an earlier plan must not undo what a later one has begun.
    #[serde(skip)]
    pub seen: StageRevisions,
}

impl Body {
    /// Returns the kind of the object, and its part.
    pub fn target(&self) -> (Kind, Part) {
        match self {
            Self::Finalizer { .. } => (Kind::ClusterGpuPolicy, Part::Finalizer),
            Self::PolicyStatus(_) => (Kind::ClusterGpuPolicy, Part::Status),
            Self::Ledger(_) => (Kind::ClusterGpuPolicy, Part::Ledger),
            Self::DaemonSet(_) => (Kind::DaemonSet, Part::Object),
            Self::RuntimeClass(_) => (Kind::RuntimeClass, Part::Object),
            Self::Spec(_) => (Kind::GpuNode, Part::Object),
            Self::Status(_) => (Kind::GpuNode, Part::Status),
            Self::Labels(_) => (Kind::Node, Part::Labels),
            Self::Presence(_) => (Kind::Node, Part::Presence),
            Self::Conditions(_) => (Kind::Node, Part::Conditions),
            Self::Taints(_) => (Kind::Node, Part::Taints),
            Self::Cordon(_) => (Kind::Node, Part::Cordon),
            Self::Pod(_) | Self::Delete(_) => (Kind::Pod, Part::Object),
            Self::Eviction(_) => (Kind::Pod, Part::Eviction),
        }
    }
}
