//! What a write changes.

use std::fmt;

use gpu_operator_crd::keys;
use serde::Serialize;

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
#[allow(missing_docs, reason = "Kubernetes' names")]
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
    /// The health condition.
    Condition,
    /// The health taint.
    Taint,
    /// The status.
    Status,
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
            Part::Object => write!(f, "{kind} {name}"),
            Part::Finalizer => write!(f, "the finalizer of {kind} {name}"),
            Part::Labels => write!(f, "this operator's labels of {kind} {name}"),
            Part::Condition => write!(f, "condition {} of {kind} {name}", keys::HEALTH_CONDITION),
            Part::Taint => write!(f, "this operator's taint of {kind} {name}"),
            Part::Status => write!(f, "the status of {kind} {name}"),
        }
    }
}

impl Kind {
    /// Returns the name, such as `DaemonSet`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
