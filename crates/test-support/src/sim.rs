//! A model of the plan's environment as plain data: API server, DaemonSet controller, kubelets and probes. Tests
//! change facts, run the model, and check the result. Time only advances explicitly. The fleet of the end-to-end tests runs one for each of
//! its nodes, with the pods that a real API server has.

pub mod api;
pub mod constant;
mod disruption;
mod driver;
pub mod faults;
pub mod kstatus;
pub mod machine;
pub mod node;
mod node_writes;
mod one_off;
mod passes;
mod plugin;
pub mod pod;
pub mod pod_json;
mod service;
mod slices;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use gpu_operator_common::{interned::Interned, mirror::Facts};
use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, GpuNode, GpuNodeSpec, GpuNodeStatus, NodeName, PolicyName, Report,
    policy::Stage,
};
use gpu_operator_plan::{
    Plan,
    catalogue::Catalogue,
    memo::Memo,
    output::write::Write,
    settings::Settings,
    world::{
        DaemonSetFacts, ForeignPod, ForeignSet, GpuPod, GpuSlice, NodeFacts, NodeLabels, PodFacts, Refusal, Role,
        RuntimeClassFacts, TrimmedPod, World,
    },
};
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::PodSpec},
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt;

pub use faults::{Faults, Program};

/// Returns the built-in catalogue, which is parsed once.
fn builtin() -> Arc<Catalogue> {
    static BUILTIN: OnceLock<Arc<Catalogue>> = OnceLock::new();
    Arc::clone(BUILTIN.get_or_init(|| Arc::new(Catalogue::builtin().expect("a valid catalogue"))))
}

/// Returns what a write violates.
pub type Law = fn(&Sim, &Write) -> Result<(), String>;

/// The model.
#[derive(Clone)]
pub struct Sim {
    pub settings: Settings,
    pub catalogue: Arc<Catalogue>,
    pub now: Timestamp,
    pub policies: BTreeMap<PolicyName, ClusterGpuPolicy>,
    pub nodes: BTreeMap<NodeName, NodeFacts>,
    /// The labels of each node that managers other than the operator own.
    pub user_labels: BTreeMap<NodeName, NodeLabels>,
    /// The state of each machine with GPUs, whether or not its probe has reported it.
    pub machines: BTreeMap<NodeName, Report>,
    /// The container runtimes of nodes where the runtime does not respond.
    silent: BTreeMap<NodeName, Interned>,
    /// The driver that each machine's host loads on boot.
    boots_with: BTreeMap<NodeName, String>,
    pub gpu_nodes: BTreeMap<NodeName, GpuNode>,
    pub sets: BTreeMap<String, DaemonSet>,
    /// DaemonSets that have been deleted and not been created again. The operator may not know yet.
    pub deleted_sets: BTreeSet<String>,
    /// The resource name under which third-party device plugins offer GPUs.
    pub foreign_resource: String,
    /// The units that device plugins offer that no DaemonSet of a known name has placed. Where one is, kubelet has registered it last.
    pub unnamed_plugins: BTreeMap<NodeName, u32>,
    /// The slices of DRA drivers, by name.
    pub gpu_slices: BTreeMap<String, GpuSlice>,
    /// When kubelet deletes the slices of a DRA driver of this operator that is gone.
    slices_until: BTreeMap<NodeName, Timestamp>,
    /// Third-party DaemonSets, by namespace and name.
    pub foreign_sets: BTreeMap<String, DaemonSet>,
    /// Third-party pods, as the API server stores them.
    pub foreign_pods: Vec<TrimmedPod>,
    pub pods: BTreeMap<String, PodFacts>,
    pub runtime_classes: BTreeMap<String, RuntimeClassFacts>,
    /// The template from which each pod was created: its DaemonSet may have changed since.
    pub templates: BTreeMap<String, PodSpec>,
    pub refusals: BTreeMap<String, Refusal>,
    pub gpu_pods: BTreeMap<NodeName, Vec<String>>,
    /// Whether kubelets serve their pod resources, so that probes report GPU pods.
    pub serves_pod_resources: bool,
    /// Facts of GPU pods by name, for those that differ from pods of ReplicaSets.
    pub pod_facts: BTreeMap<String, GpuPod>,
    /// Why the API server rejects the eviction of pods.
    pub budgets: BTreeMap<String, String>,
    /// The pods whose eviction it has rejected, and why.
    pub refused_evictions: BTreeMap<String, String>,
    /// The pods that it would evict, with their UIDs.
    pub allowed_evictions: BTreeMap<String, String>,
    /// The programs that use the driver of each node without a GPU pod.
    pub programs: BTreeMap<NodeName, Vec<Program>>,
    /// The resource that a GPU pod requests, if it is not `nvidia.com/gpu`.
    pub requests: BTreeMap<String, String>,
    /// The log of successful tests, or the error on reading it.
    pub test_log: Result<String, String>,
    pub faults: BTreeMap<NodeName, Faults>,
    /// Whether a driver's container that ends takes its root along and, unless something uses it, the driver; and whether device plugins
    /// use it. That is so on real nodes. The plan's tests do without: their drivers stay, as those of an installer do.
    pub unloads_drivers: bool,
    /// The driver versions whose containers crash, on every node.
    pub broken_drivers: BTreeSet<String>,
    /// The containers that have crashed once, by pod and boot: how often.
    pub crashes: BTreeMap<(String, Interned), u32>,
    /// How long after their eviction GPU pods end, for those that do not end at once.
    pub graces: BTreeMap<String, SignedDuration>,
    /// The nodes on which a DaemonSet of a user has a pod with a GPU, and how many pods it has created there.
    pub user_sets: BTreeMap<NodeName, u32>,
    /// Policies and GpuNodes that another version of the API has written, and that the operator cannot parse.
    pub unparsable_policies: BTreeSet<PolicyName>,
    pub unparsable_gpu_nodes: BTreeSet<NodeName>,
    /// What must hold before every write of a plan. A violation is a panic.
    pub law: Option<Law>,
    /// Writes so far, by object.
    pub writes: BTreeMap<String, u32>,
    /// All plans that were carried out, newest last.
    pub plans: Vec<Plan>,
    /// What plans leave for the next ones.
    memo: RefCell<Memo>,
    /// The number of policies that have been created.
    created: u32,
    /// Since when the probes of nodes have been mute.
    mute_since: BTreeMap<NodeName, Timestamp>,
    /// The Nodes, by uid, whose kubelets have offered GPUs and whose probes have reported, with the boots on which they have.
    pub served_on: BTreeSet<(String, Box<str>)>,
}

impl Sim {
    pub fn new() -> Self {
        Self {
            settings: Settings {
                namespace: "gpu-operator".into(),
                probe_image: "registry.example.com/nvml-probe:1".into(),
                probe_pull_policy: "IfNotPresent".into(),
                image_pull_secrets: vec![],
                kubelet_root: None,
                evicts_pods: true,
                quiets: false,
            },
            catalogue: builtin(),
            now: "2026-01-01T00:00:00Z".parse().expect("a time"),
            policies: BTreeMap::new(),
            nodes: BTreeMap::new(),
            user_labels: BTreeMap::new(),
            machines: BTreeMap::new(),
            silent: BTreeMap::new(),
            boots_with: BTreeMap::new(),
            gpu_nodes: BTreeMap::new(),
            sets: BTreeMap::new(),
            deleted_sets: BTreeSet::new(),
            foreign_resource: gpu_operator_crd::keys::GPU_RESOURCE.into(),
            unnamed_plugins: BTreeMap::new(),
            gpu_slices: BTreeMap::new(),
            slices_until: BTreeMap::new(),
            foreign_sets: BTreeMap::new(),
            foreign_pods: Vec::new(),
            pods: BTreeMap::new(),
            runtime_classes: BTreeMap::new(),
            templates: BTreeMap::new(),
            refusals: BTreeMap::new(),
            gpu_pods: BTreeMap::new(),
            serves_pod_resources: true,
            pod_facts: BTreeMap::new(),
            budgets: BTreeMap::new(),
            refused_evictions: BTreeMap::new(),
            allowed_evictions: BTreeMap::new(),
            programs: BTreeMap::new(),
            requests: BTreeMap::new(),
            test_log: Ok("[Vector addition of 50000 elements]\nTest PASSED\nDone\n".into()),
            faults: BTreeMap::new(),
            unloads_drivers: false,
            broken_drivers: BTreeSet::new(),
            crashes: BTreeMap::new(),
            graces: BTreeMap::new(),
            user_sets: BTreeMap::new(),
            unparsable_policies: BTreeSet::new(),
            unparsable_gpu_nodes: BTreeSet::new(),
            law: None,
            writes: BTreeMap::new(),
            plans: vec![],
            memo: RefCell::default(),
            created: 0,
            mute_since: BTreeMap::new(),
            served_on: BTreeSet::new(),
        }
    }

    /// Returns a settled fleet of nodes with eight H100 each under a policy `all` of this spec.
    pub fn settled_fleet(spec: &str, nodes: &[&str]) -> Self {
        let mut sim = Self::new().policy("all", spec);
        for node in nodes {
            sim.join(*node, "2330", 8);
        }
        sim.settle();
        sim
    }

    /// The operator is replaced by another release, whose newest recommended driver is this one.
    pub fn recommend(&mut self, driver: &str) {
        let [models, desktop] =
            [include_str!("../../plan/data/accelerators.yaml"), include_str!("../../plan/data/desktop.txt")];
        let models = models.replace("version: \"595.91.07\"", &format!("version: \"{driver}\""));
        self.catalogue = Arc::new(Catalogue::from_files(&models, desktop).expect("a valid catalogue"));
    }

    /// Adds a node with `count` GPUs of a PCI device id that has reported.
    pub fn gpu_node(mut self, name: impl Into<NodeName>, device_id: &str, count: u32) -> Self {
        self.join(name, device_id, count);
        self
    }

    pub fn policy(mut self, name: impl Into<PolicyName>, spec: &str) -> Self {
        self.apply_policy(name, spec);
        self
    }

    pub fn node(&self, name: impl Into<NodeName>) -> &NodeFacts {
        &self.nodes[&name.into()]
    }

    pub fn node_mut(&mut self, name: impl Into<NodeName>) -> &mut NodeFacts {
        self.nodes.get_mut(&name.into()).expect("a node")
    }

    pub fn spec(&self, node: impl Into<NodeName>) -> &GpuNodeSpec {
        &self.gpu_nodes[&node.into()].spec
    }

    pub fn status(&self, node: impl Into<NodeName>) -> GpuNodeStatus {
        self.gpu_nodes[&node.into()].status.clone().unwrap_or_default()
    }

    pub fn policy_status(&self, policy: impl Into<PolicyName>) -> ClusterGpuPolicyStatus {
        self.policies[&policy.into()].status.clone().expect("a status")
    }

    /// Returns the name of the pod on a node that installs a driver and belongs to no DaemonSet.
    pub fn foreign_pod_on(&self, node: &NodeName) -> Option<String> {
        let on_node = |pod: &&_| ForeignPod::key(pod).is_some_and(|key| key.starts_with(&ForeignPod::prefix(node)));
        let mut pods = self.foreign_pods.iter().filter(on_node).filter_map(ForeignPod::of);
        pods.find(|pod| pod.set.is_none()).map(|pod| pod.name)
    }

    /// Returns whether a node is being updated.
    pub fn is_moving(&self, node: impl Into<NodeName>) -> bool {
        self.gpu_nodes.get(&node.into()).is_some_and(|gpu_node| gpu_node.spec.rollout.is_some())
    }

    /// Returns the world as the operator's mirrors show it.
    pub fn world(&self) -> World {
        fn arcs<N: Ord + Clone, T: Clone>(map: &BTreeMap<N, T>) -> Facts<T, N> {
            map.iter().map(|(name, value)| (name.clone(), Arc::new(value.clone()))).collect()
        }
        let existing = |name: &&PolicyName| self.policies.contains_key(name);
        let unreadable_policies: BTreeSet<_> = self.unparsable_policies.iter().filter(existing).cloned().collect();
        let existing = |name: &&NodeName| self.gpu_nodes.contains_key(name);
        let unreadable_gpu_nodes: BTreeSet<_> = self.unparsable_gpu_nodes.iter().filter(existing).cloned().collect();
        let mut policies = arcs(&self.policies);
        policies.retain(|name, _| !unreadable_policies.contains(name));
        let readable = self.gpu_nodes.iter().filter(|(name, _)| !unreadable_gpu_nodes.contains(name));
        let gpu_nodes = readable.map(|(name, gpu_node)| (name.clone(), Arc::new(self.with_report(name, gpu_node))));
        World {
            policies,
            nodes: arcs(&self.nodes),
            gpu_nodes: gpu_nodes.collect(),
            daemon_sets: self
                .sets
                .iter()
                .map(|(name, set)| (name.clone(), Arc::new(DaemonSetFacts::of(set))))
                .collect(),
            foreign_sets: self
                .foreign_sets
                .iter()
                .filter_map(|(name, set)| Some((name.clone(), Arc::new(ForeignSet::of(set)?))))
                .collect(),
            foreign_pods: self
                .foreign_pods
                .iter()
                .filter_map(|pod| Some((ForeignPod::key(pod)?, Arc::new(ForeignPod::of(pod)?))))
                .collect(),
            gpu_slices: arcs(&self.gpu_slices),
            pods: self.pods.values().cloned().map(Arc::new).collect(),
            runtime_classes: arcs(&self.runtime_classes),
            refusals: arcs(&self.refusals),
            unreadable_policies,
            unreadable_gpu_nodes,
            refused_evictions: self.refused_evictions.clone(),
            allowed_evictions: self.allowed_evictions.clone(),
            ..World::default()
        }
    }

    pub fn sleep(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    /// Returns the pods that validate a node.
    pub fn tests_on(&self, node: impl Into<NodeName>) -> Vec<&PodFacts> {
        let node = node.into();
        self.pods.values().filter(|pod| pod.role == Role::Validation && pod.node == node).collect()
    }

    /// Returns the DaemonSets of a stage, ordered by name.
    pub fn sets_of(&self, stage: Stage) -> Vec<&DaemonSet> {
        let prefix = format!("{}-", stage.as_str());
        self.sets.values().filter(|set| set.name_any().starts_with(&prefix)).collect()
    }

    /// Returns the image of a DaemonSet's main container.
    pub fn image(set: &DaemonSet) -> String {
        let spec = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).expect("a pod's spec");
        spec.containers[0].image.clone().expect("an image")
    }

    /// Returns the message of a policy's condition.
    pub fn message(&self, policy: impl Into<PolicyName>, kind: &str) -> String {
        let conditions = self.policy_status(policy).conditions.into_iter();
        conditions.filter(|condition| condition.type_ == kind).map(|condition| condition.message).collect()
    }

    /// Returns status and reason of a policy's condition.
    pub fn condition(&self, policy: impl Into<PolicyName>, kind: &str) -> (String, String) {
        let status = self.policies[&policy.into()].status.clone().unwrap_or_default();
        let condition = status.conditions.into_iter().find(|condition| condition.type_ == kind);
        condition.map(|condition| (condition.status, condition.reason)).unwrap_or_default()
    }
}
