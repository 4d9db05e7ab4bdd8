//! The plan and its writes, for everything that carries out a plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    mem::take,
    sync::Arc,
};

use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, GROUP, GpuNode, NodeName, PolicyName, PoolName, VERSION, keys,
    policy::Stage,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    inventory::membership::name_of,
    output::{
        body::{Body, Kind, LabelWrite, Part, Target},
        events::Transition,
    },
    revision::daemon_set_name,
    world::{Concern, PodFacts, Role},
};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Write {
    pub target: Target,
    pub body: Body,
    #[serde(skip)]
    pub urgency: Urgency,
    /// Reported as Events once the write has succeeded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Transition>,
    /// The role of a pod, whose name differs each time.
    #[serde(skip)]
    pub role: Option<String>,
}

/// How soon a write is worth a request. A pending one is planned again with the facts of that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Everything but a status.
    #[default]
    Immediate,
    /// Soon, and for a node at once: a change that a user may wait for or act upon, or that later plans depend on.
    Prompt,
    /// After a while: other counts, or another transient phase.
    Progress,
    /// With the next write of the status.
    Detail,
}

/// Writes of one step are independent of each other; a step begins when the previous one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Before anything else that is created for the policy.
    AddFinalizer,
    /// They depend on nothing: a pod may be waiting for the end of a startup taint. The labels of the same Nodes are written later, on the
    /// condition that the Node has not changed.
    Taints,
    /// Objects that the labels of nodes name.
    Operands,
    /// A node gets a slot before its update begins.
    Ledgers,
    /// Specs of GpuNodes, which record why labels change. The label of nodes with GPUs is written here too, because the other labels are
    /// written on the condition that the Node has not changed.
    Records,
    Nodes,
    /// After the labels of the same Nodes, also on the condition that the Node has not changed.
    Cordons,
    /// After everything that they report. Deletions and tests come after everything that replaces them.
    NodeStatuses,
    /// They summarize the nodes.
    PolicyStatuses,
    RemoveFinalizer,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dependency {
    /// As the plan wants it.
    DaemonSet(String),
    /// The GpuNode records what the plan decided.
    Record(NodeName),
    /// As the plan wants it.
    Ledger(PolicyName),
}

impl Write {
    pub fn new(name: impl fmt::Display, body: Body) -> Self {
        let (kind, part) = body.target();
        let target = Target { kind, part, name: name.to_string() };
        Self { target, body, urgency: Urgency::Immediate, events: Vec::new(), role: None }
    }

    /// Whatever the object's uid.
    pub fn delete(kind: Kind, name: &str) -> Self {
        let mut write = Self::new(name, Body::Delete(None));
        write.target.kind = kind;
        write
    }

    pub fn delete_pod(pod: &PodFacts) -> Self {
        let role = match pod.role {
            Role::Operand(stage) => Some(format!("the pod of the {} of node {}", stage.title(), pod.node)),
            _ => None,
        };
        Self { role, ..Self::delete(Kind::Pod, &pod.name) }
    }

    /// Whether it changes nothing on a node.
    pub fn only_reports(&self) -> bool {
        matches!(self.body, Body::PolicyStatus(_) | Body::Status(_) | Body::Finalizer { .. })
    }

    pub fn step(&self) -> Step {
        match &self.body {
            Body::Finalizer { present: true, .. } => Step::AddFinalizer,
            Body::DaemonSet(_) | Body::RuntimeClass(_) => Step::Operands,
            Body::Ledger(_) => Step::Ledgers,
            Body::Spec(_) | Body::Presence(_) => Step::Records,
            Body::Taints(_) => Step::Taints,
            Body::Labels(_) => Step::Nodes,
            Body::Cordon(_) | Body::Eviction(_) | Body::EvictionCheck(_) => Step::Cordons,
            Body::Conditions(_) | Body::Status(_) | Body::Pod(_) | Body::Delete(_) => Step::NodeStatuses,
            Body::PolicyStatus(_) => Step::PolicyStatuses,
            Body::Finalizer { present: false, .. } => Step::RemoveFinalizer,
        }
    }

    /// What other writes lack until this one has succeeded.
    pub fn provides(&self) -> Vec<Dependency> {
        match &self.body {
            Body::DaemonSet(_) => vec![Dependency::DaemonSet(self.target.name.clone())],
            Body::Ledger(_) => vec![Dependency::Ledger(self.target.name.as_str().into())],
            Body::Spec(_) => vec![Dependency::Record(self.target.name.as_str().into())],
            _ => Vec::new(),
        }
    }

    /// Without these, the write is left to a later plan.
    pub fn requires(&self) -> Vec<Dependency> {
        let sets = |named: &dyn Fn(Stage) -> Option<String>| {
            Stage::ALL.into_iter().filter_map(named).map(Dependency::DaemonSet).collect::<Vec<_>>()
        };
        match &self.body {
            Body::Spec(write) => {
                let mut required = sets(&|stage| Some(daemon_set_name(stage, write.records.get(stage)?)));
                if write.spec.rollout.is_some() {
                    required.extend(sets(&|stage| Some(daemon_set_name(stage, write.spec.wanted.get(stage)?))));
                }
                required.extend(write.spec.policy.clone().filter(|_| write.follows_ledger).map(Dependency::Ledger));
                required
            }
            // A label that names a DaemonSet that does not exist would remove the pods that the node has.
            Body::Labels(write) => {
                let revision = |stage: Stage| Some(write.labels.get(stage.key())?.as_str().into());
                let mut required = sets(&|stage| Some(daemon_set_name(stage, &revision(stage)?)));
                required.push(Dependency::Record(self.target.name.as_str().into()));
                required
            }
            Body::Cordon(_) => vec![Dependency::Record(self.target.name.as_str().into())],
            _ => Vec::new(),
        }
    }

    pub fn concerns(&self) -> Concern {
        let name = self.target.name.as_str();
        match (self.target.kind, &self.body) {
            (Kind::ClusterGpuPolicy, _) => Concern::Policy(name.into()),
            (Kind::GpuNode | Kind::Node, _) => Concern::Node(name.into()),
            (_, Body::DaemonSet(write)) => {
                let policy = write.set.labels().get(keys::POLICY);
                policy.map_or(Concern::Fleet, |policy| Concern::Policy(policy.as_str().into()))
            }
            (_, Body::Pod(pod)) => {
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                node.map_or(Concern::Fleet, |node| Concern::Node(node.into()))
            }
            _ => Concern::Fleet,
        }
    }

    /// Parts of an object that are written at different times have different managers, because an apply removes what its manager applied
    /// before.
    pub fn manager(&self) -> &'static str {
        match self.target.part {
            Part::Object | Part::Status | Part::Eviction => keys::MANAGER,
            Part::Finalizer => keys::FINALIZER_MANAGER,
            Part::Labels => keys::LABEL_MANAGER,
            Part::Presence => keys::PRESENCE_MANAGER,
            Part::Conditions | Part::Taints => keys::HEALTH_MANAGER,
            Part::Cordon => keys::CORDON_MANAGER,
            Part::Ledger => keys::LEDGER_MANAGER,
        }
    }

    pub fn is_forced(&self) -> bool {
        match &self.body {
            // A RuntimeClass that another user created meanwhile with a different handler is kept.
            Body::RuntimeClass(_) => false,
            Body::Labels(write) => write.force,
            _ => true,
        }
    }

    /// In the API server's notation.
    pub fn fields(&self) -> Value {
        let Target { kind, name, .. } = &self.target;
        let (field, value) = match &self.body {
            Body::DaemonSet(write) => return json!(write.set),
            Body::RuntimeClass(class) => return json!(class),
            Body::Pod(pod) => return json!(pod),
            Body::Spec(write) => {
                let mut gpu_node = GpuNode::new(name, write.spec.clone());
                gpu_node.metadata.owner_references = Some(vec![write.owner.clone()]);
                gpu_node.metadata.uid.clone_from(&write.uid);
                return json!(gpu_node);
            }
            Body::Presence(_)
            | Body::Taints(_)
            | Body::Cordon(_)
            | Body::Eviction(_)
            | Body::EvictionCheck(_)
            | Body::Delete(_) => return Value::Null,
            Body::PolicyStatus(status) => ("status", json!(status)),
            Body::Status(status) => ("status", json!(status)),
            Body::Ledger(ledger) => ("status", json!({"rollout": {"slots": ledger.slots, "pools": ledger.pools}})),
            Body::Finalizer { uid, present } => {
                let finalizers = if *present { vec![keys::FINALIZER] } else { vec![] };
                ("metadata", json!({"name": name, "uid": uid, "finalizers": finalizers}))
            }
            // Without the uid, apply would try to recreate a deleted Node, and the API server would report a missing permission
            // instead of a conflict.
            Body::Labels(LabelWrite { uid, labels, .. }) if labels.is_empty() => {
                ("metadata", json!({"name": name, "uid": uid}))
            }
            Body::Labels(LabelWrite { uid, labels, .. }) => {
                ("metadata", json!({"name": name, "uid": uid, "labels": labels}))
            }
            Body::Conditions(conditions) => {
                let conditions = conditions.iter().map(|(kind, condition)| condition.to_value(kind));
                ("status", json!({"conditions": conditions.collect::<Vec<_>>()}))
            }
        };
        let api_version = if *kind == Kind::Node { "v1".to_owned() } else { format!("{GROUP}/{VERSION}") };
        let mut fields = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
        fields[field] = value;
        fields
    }
}

/// For example `apply DaemonSet driver-1a2b3c`.
impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match &self.body {
            Body::Finalizer { present: true, .. } => "add",
            Body::Finalizer { present: false, .. } => "remove",
            Body::Delete(_) => "delete",
            Body::Eviction(_) | Body::EvictionCheck(_) => "evict",
            Body::Pod(_) => "create",
            _ => "apply",
        };
        write!(f, "{action} {}", self.target)
    }
}

pub fn finalizer(policy: &ClusterGpuPolicy, present: bool) -> Write {
    Write::new(name_of(policy), Body::Finalizer { uid: policy.uid().unwrap_or_default(), present })
}

/// Everything that must be written and, even if nothing must be done, what metrics show.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// In the order of their targets.
    pub writes: Vec<Write>,
    /// What must be known before more can be decided.
    pub questions: Questions,
    /// When to plan again even if nothing changes.
    pub check_again: Option<Timestamp>,
    /// Whether pods may be waiting for the end of a startup taint, which the first pass that finds the node ready removes.
    #[serde(skip)]
    pub has_waiting_pods: bool,
    /// Written or not, for metrics.
    #[serde(skip)]
    pub statuses: BTreeMap<PolicyName, ClusterGpuPolicyStatus>,
    /// For metrics: a pool's status has one reason, which may be another.
    #[serde(skip)]
    pub halted: BTreeMap<PolicyName, BTreeSet<PoolName>>,
}

/// Once the answers are known, the plan is computed again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Questions {
    /// Answered in [`crate::world::World::gpu_pods`].
    pub gpu_pods: BTreeSet<NodeName>,
    /// Finished tests; answered in [`crate::world::World::log_tails`].
    pub log_tails: BTreeSet<String>,
}

/// The writes of one step are independent of each other.
pub type Steps = Vec<Vec<Arc<Write>>>;

impl Plan {
    /// Whether there is nothing to write and nothing to query.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.questions.gpu_pods.is_empty() && self.questions.log_tails.is_empty()
    }

    pub fn events(&self) -> impl Iterator<Item = &Transition> {
        self.writes.iter().flat_map(|write| &write.events)
    }

    /// Each target once: a pod may have to be recreated for several reasons.
    pub fn sort(&mut self) {
        self.writes.sort_by(|one, other| one.target.cmp(&other.target));
        self.writes.dedup_by(|later, first| {
            let same = later.target == first.target;
            if same {
                first.events.append(&mut later.events);
            }
            same
        });
    }

    pub fn take_writes(&mut self) -> Steps {
        let mut steps: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for write in take(&mut self.writes) {
            steps.entry(write.step()).or_default().push(Arc::new(write));
        }
        steps.into_values().collect()
    }
}
