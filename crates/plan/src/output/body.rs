//! The target of a write, and what is written to it.

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

/// An object, or a part of one that has its own field manager.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Target {
    pub kind: Kind,
    pub part: Part,
    pub name: String,
}

/// Namespaced objects are in the operator's namespace.
#[derive(strum::IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Kind {
    ClusterGpuPolicy,
    DaemonSet,
    GpuNode,
    Node,
    Pod,
    RuntimeClass,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Part {
    /// Without the status.
    Object,
    Finalizer,
    /// Those that this operator sets.
    Labels,
    /// The label of nodes with GPUs.
    Presence,
    /// Those that this operator sets.
    Conditions,
    Taints,
    Cordon,
    /// In the status.
    Ledger,
    Status,
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
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Body {
    /// Of the policy with this uid.
    Finalizer {
        /// The policy may have been deleted and created again.
        uid: String,
        present: bool,
    },
    /// Without the ledger.
    PolicyStatus(Box<ClusterGpuPolicyStatus>),
    /// Unless the policy has changed since.
    Ledger(Box<LedgerWrite>),
    DaemonSet(Box<DaemonSetWrite>),
    RuntimeClass(Box<RuntimeClass>),
    /// Spec and owner of a GpuNode, which is created if it does not exist.
    Spec(Box<SpecWrite>),
    /// Of a GpuNode, without the probe's report.
    Status(Box<GpuNodeStatus>),
    Labels(LabelWrite),
    /// Whether the Node has GPUs, or none any more.
    Presence(bool),
    Conditions(OwnConditions),
    /// Sets or removes the taint of unhealthy GPUs, and removes startup taints.
    Taints(TaintWrite),
    /// Cordons a Node with a record of that, or undoes such a cordon.
    Cordon(bool),
    Pod(Box<Pod>),
    /// The pod `namespace/name`, if it has this uid.
    Eviction(String),
    /// The same as a dry run, which shows whether the API server would evict the pod.
    EvictionCheck(String),
    /// The object, if it has this uid.
    Delete(Option<String>),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DaemonSetWrite {
    pub set: DaemonSet,
    /// Whether third-party additions are removed as well: applying restores only this operator's fields.
    pub whole: bool,
    /// Of the present DaemonSet.
    #[serde(skip)]
    pub generation: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpecWrite {
    pub spec: GpuNodeSpec,
    pub owner: OwnerReference,
    /// The GpuNode may have been deleted and created again; `None` to create it.
    #[serde(skip)]
    pub uid: Option<String>,
    /// The revisions that `spec.current` did not name before. They are recorded only if their DaemonSets exist: a revision that never had a pod
    /// would later be restored.
    #[serde(skip)]
    pub records: StageRevisions,
    /// For which the write was planned: an earlier plan must not undo what a later one has begun.
    #[serde(skip)]
    pub generation: Option<i64>,
    /// Whether it begins or ends an update, which the ledger has to know first.
    #[serde(skip)]
    pub follows_ledger: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LedgerWrite {
    pub slots: Vec<Slot>,
    pub pools: Vec<PoolRollout>,
    /// The policy may have been deleted and created again.
    #[serde(skip)]
    pub uid: String,
    /// For which the write was planned.
    #[serde(skip)]
    pub generation: Option<i64>,
    /// The ledger for which the write was planned.
    #[serde(skip)]
    pub before: (Vec<Slot>, Vec<PoolRollout>),
}

/// All the labels of a Node that this operator then owns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabelWrite {
    /// The Node may have been deleted and created again.
    pub uid: String,
    /// Labels that were applied before and are not in it are removed.
    pub labels: Labels,
    /// Whether to take keys over from other writers. Never if a user's key is published for the first time.
    pub force: bool,
    /// The revisions in the labels when the write was planned: an earlier plan must not undo what a later one has begun.
    #[serde(skip)]
    pub seen: StageRevisions,
}

impl Body {
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
            Self::Eviction(_) | Self::EvictionCheck(_) => (Kind::Pod, Part::Eviction),
        }
    }
}
