//! What must hold at every instant, told from the fleet's own facts and not from what the operator makes of them.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus,
    gpunode::GpuCounts,
    keys,
    policy::{Pool, Stage},
    report::NvmlState,
};
use gpu_operator_plan::{
    Plan,
    world::{NodeFacts, PodFacts, Role},
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use crate::sim::Sim;

/// This operator's labels on Nodes.
const OURS: [&str; 7] =
    [keys::CUDA_VERSION, keys::MODEL, keys::POOL, keys::DRIVER, keys::TOOLKIT, keys::MPS, keys::DEVICE_PLUGIN];

/// Watches a fleet. What it remembers is which nodes are out of work because the operator moves them, or have been until
/// its last pass.
#[derive(Default)]
pub struct Oracle {
    moved: BTreeSet<String>,
    /// After how many writes each pass is cut short and begun again, over and over; empty: never.
    kills: Vec<usize>,
}

impl Oracle {
    /// One under which the operator is killed in every pass, after so many writes each.
    pub fn with_kills(kills: &[usize]) -> Self {
        Self { kills: kills.to_vec(), ..Self::default() }
    }

    /// One pass of the operator, checked; whether anything happened.
    pub fn step(&mut self, sim: &mut Sim) -> bool {
        let mut happened = false;
        if let Some(writes) = self.kills.first().copied() {
            self.kills.rotate_left(1);
            happened = self.killed(sim, writes);
        }
        let working: Vec<_> = self.moved.iter().filter(|name| !is_out_of_work(sim, name)).cloned().collect();
        happened |= self.pass(sim, Sim::step_with);
        for name in &working {
            self.forget(name);
        }
        sim.sleep(1);
        happened
    }

    /// Passes until nothing has happened for longer than anything waits before it is sure of itself.
    pub fn rest(&mut self, sim: &mut Sim) {
        let mut quiet = 0;
        for pass in 0.. {
            assert!(pass < 300, "not settled after 300 passes: {:#?}", sim.plans.last());
            if self.step(sim) {
                quiet = 0;
                continue;
            }
            quiet += 1;
            let next = sim.plans.last().and_then(|plan| plan.check_again);
            match next.filter(|_| quiet < 10) {
                Some(next) => sim.now = sim.now.max(next),
                None => return,
            }
        }
    }

    /// Takes a node for one that is not being moved.
    pub fn forget(&mut self, name: &str) {
        self.moved.remove(name);
    }

    /// A pass that ends after so many writes; whether there were any.
    pub fn killed(&mut self, sim: &mut Sim, writes: usize) -> bool {
        self.pass(sim, |sim, plan| {
            sim.carry_out_first(&plan, writes);
            !plan.is_empty()
        })
    }

    fn pass(&mut self, sim: &mut Sim, carry_out: impl FnOnce(&mut Sim, Plan) -> bool) -> bool {
        let plan = sim.plan();
        check(sim, &plan);
        let out_of_work: BTreeSet<_> = self.moved.iter().filter(|name| is_out_of_work(sim, name)).cloned().collect();
        let (before, on_their_way) = (sim.nodes.clone(), on_their_way(sim));
        let happened = carry_out(sim, plan);
        for name in before.values().filter(|node| is_taken_out(sim, node)).map(|node| &node.name) {
            if self.moved.insert(name.clone()) {
                let pool = |name: &str| {
                    let policy = governing(sim, name).map(ResourceExt::name_any);
                    (policy, sim.nodes[name].labels.get(keys::POOL).cloned())
                };
                let other = out_of_work.iter().find(|other| pool(other) == pool(name));
                assert_eq!(other, None, "{name} is moved while another node of its pool {:?} is", pool(name));
            }
        }
        runtimes_are_restarted_in_turn(sim, &before, on_their_way);
        happened
    }
}

/// The policy and the pool of a node.
type PoolOf = (Option<String>, Option<Interned>);

fn pool_of(sim: &Sim, node: &NodeFacts) -> PoolOf {
    (governing(sim, &node.name).map(ResourceExt::name_any), node.labels.get(keys::POOL).cloned())
}

/// Nodes whose container runtime may be restarted at any moment, by pool: they have a toolkit to come that does so, and it has
/// not failed.
fn on_their_way(sim: &Sim) -> BTreeMap<PoolOf, String> {
    let comes = |node: &&NodeFacts| {
        let pod = sim.pods.get(&format!("toolkit@{}", node.name));
        let pod = pod.filter(|pod| pod.group.as_ref() == node.labels.get(keys::TOOLKIT));
        let to_come = pod.map_or(node.ready, |pod| !pod.has_started() && pod.init.is_empty());
        sim.restarts_runtime(&node.name) && to_come
    };
    sim.nodes.values().filter(comes).map(|node| (pool_of(sim, node), node.name.clone())).collect()
}

/// No node is given a toolkit that restarts its container runtime while another one of its pool has one that is to come.
fn runtimes_are_restarted_in_turn(
    sim: &Sim,
    before: &BTreeMap<String, NodeFacts>,
    mut on_their_way: BTreeMap<PoolOf, String>,
) {
    for (name, node) in &sim.nodes {
        let label = |node: &NodeFacts| node.labels.get(keys::TOOLKIT).cloned();
        let had = before.get(name).and_then(label);
        if label(node).is_none() || label(node) == had || !sim.restarts_runtime(name) {
            continue;
        }
        let pool = pool_of(sim, node);
        let other = on_their_way.insert(pool.clone(), name.clone()).filter(|other| other != name);
        assert_eq!(other, None, "its runtime and that of {name}, of pool {pool:?}, are restarted at once");
    }
}

/// Whether a node that worked before a pass has been given another revision by it.
fn is_taken_out(sim: &Sim, before: &NodeFacts) -> bool {
    let Some(after) = sim.nodes.get(&before.name).filter(|node| governing(sim, &node.name).is_some()) else {
        return false;
    };
    let changed = |stage: Stage| {
        let had = before.labels.get(stage.key());
        had.is_some() && had != after.labels.get(stage.key())
    };
    before.allocatable.total() > 0 && Stage::ALL.into_iter().any(changed)
}

/// Whether a node of a policy lacks a plugin, or any pod that its labels call for.
fn is_out_of_work(sim: &Sim, name: &str) -> bool {
    governing(sim, name).is_some() && !is_whole(sim, name)
}

/// Whether a node has a plugin again, and every pod that its labels call for runs.
fn is_whole(sim: &Sim, name: &str) -> bool {
    let labels = &sim.nodes[name].labels;
    let runs = |stage: Stage| {
        let pod = sim.pods.get(&format!("{}@{name}", stage.as_str()));
        pod.is_some_and(|pod| pod.running() && pod.group.as_ref() == labels.get(stage.key()))
    };
    labels.contains_key(keys::DEVICE_PLUGIN)
        && Stage::ALL.into_iter().all(|stage| !labels.contains_key(stage.key()) || runs(stage))
}

/// Everything that must hold of a plan before it is carried out.
pub fn check(sim: &Sim, plan: &Plan) {
    gpu_pods_keep_what_they_stand_on(sim, plan);
    only_named_keys_are_written(sim, plan);
    what_was_discovered_stays_while_nobody_tells(sim, plan);
    nothing_begins_beside_a_foreign_pod(sim, plan);
    for (name, status) in &plan.statuses {
        let count = count(sim, plan, name);
        assert!(!says_ready(status) || count.able >= count.required, "{name}: {count:?}: {status:#?}");
    }
}

/// No driver moves under a GPU pod, and no node with one loses its plugin, unless a user takes it away from the operator.
fn gpu_pods_keep_what_they_stand_on(sim: &Sim, plan: &Plan) {
    let used = |name: &String| sim.gpu_pods.get(name).is_some_and(|pods| !pods.is_empty());
    for (name, write) in plan.labels.iter().filter(|(name, _)| used(name) && governing(sim, name).is_some()) {
        let had = &sim.nodes[name].labels;
        let driver = had.get(keys::DRIVER);
        assert!(
            driver.is_none() || driver.map(Interned::as_str) == write.labels.get(keys::DRIVER).map(String::as_str),
            "{name}: the driver moves under a GPU pod"
        );
        let plugin = had.get(keys::DEVICE_PLUGIN);
        assert!(plugin.is_none() || write.labels.contains_key(keys::DEVICE_PLUGIN), "{name} loses its plugin");
    }
    let named = |set: &String| {
        let by = |node: &NodeFacts| {
            let sets = Stage::ALL.map(|stage| Some(format!("{}-{}", stage.as_str(), node.labels.get(stage.key())?)));
            sets.into_iter().flatten().any(|named| named == *set)
        };
        sim.nodes.values().find(|node| used(&node.name) && by(node) && governing(sim, &node.name).is_some())
    };
    for set in &plan.prune {
        assert!(named(set).is_none(), "{set} is pruned while GPU pods stand on it");
    }
    for pod in &plan.recreate {
        let pod = &sim.pods[pod];
        let may_run = pod.role == Role::Validation || holds_an_old_root(sim, pod);
        assert!(!pod.running() || may_run, "{} runs and is recreated", pod.name);
    }
}

/// Whether a pod of the plugin or of MPS' daemon runs since before the driver's container does, which may be down or gone.
fn holds_an_old_root(sim: &Sim, pod: &PodFacts) -> bool {
    let has_driver = sim.nodes[pod.node.as_str()].labels.contains_key(keys::DRIVER);
    let started = sim.pods.get(&format!("driver@{}", pod.node)).and_then(PodFacts::running_since);
    matches!(pod.role, Role::Operand(Stage::DevicePlugin | Stage::Mps))
        && has_driver
        && started.is_none_or(|started| pod.running_since() < Some(started))
}

/// A node that has nothing of the operator's and a pod with a driver that no DaemonSet stands for gets nothing.
fn nothing_begins_beside_a_foreign_pod(sim: &Sim, plan: &Plan) {
    for (name, write) in plan.labels.iter().filter(|(name, _)| sim.foreign_pod_on(name).is_some()) {
        let has_any = |has: &dyn Fn(&str) -> bool| Stage::ALL.into_iter().any(|stage| has(stage.key()));
        let had = has_any(&|key| sim.nodes[name].labels.get(key).is_some_and(|group| !group.is_empty()));
        assert!(
            had || !has_any(&|key| write.labels.contains_key(key)),
            "{name}: {write:?} begins beside another driver"
        );
        let driver = |had: bool| had || !write.labels.contains_key(keys::DRIVER);
        assert!(driver(sim.nodes[name].labels.contains_key(keys::DRIVER)), "{name}: a driver begins beside another");
    }
}

/// The operator writes its own labels, those that the node's policy names, and no others.
fn only_named_keys_are_written(sim: &Sim, plan: &Plan) {
    for (name, write) in &plan.labels {
        let spec = governing(sim, name).map(|policy| &policy.spec);
        let of_pools = spec.into_iter().flat_map(|spec| &spec.pools).flat_map(|pool| &pool.node_labels);
        let named: BTreeSet<&str> = spec
            .into_iter()
            .flat_map(|spec| &spec.node_labels)
            .chain(of_pools.map(|label| &label.key))
            .map(String::as_str)
            .collect();
        let discovered = spec.is_some_and(|spec| spec.compatibility.wants_gfd());
        let legal = |key: &&String| {
            OURS.contains(&key.as_str()) || named.contains(key.as_str()) || discovered && keys::is_discovered(key)
        };
        let illegal: Vec<_> = write.labels.keys().filter(|key| !legal(key)).collect();
        assert!(illegal.is_empty(), "{name}: {illegal:?}");
    }
}

/// As long as a policy wants the labels of GPU feature discovery, they are only removed while a driver reports the GPUs.
fn what_was_discovered_stays_while_nobody_tells(sim: &Sim, plan: &Plan) {
    for (name, write) in &plan.labels {
        let wanted = governing(sim, name).is_some_and(|policy| policy.spec.compatibility.wants_gfd());
        let gone = sim.nodes[name].owned_labels.iter().filter(|key| keys::is_discovered(key));
        let gone: Vec<_> = gone.filter(|key| !write.labels.contains_key(key.as_str())).collect();
        assert!(gone.is_empty() || !wanted || nvml_answers(sim, name), "{name}: {gone:?} without a word of NVML");
    }
}

fn nvml_answers(sim: &Sim, name: &str) -> bool {
    let report = sim.gpu_nodes.get(name).and_then(|gpu_node| sim.told(name, gpu_node).status?.report);
    report.is_some_and(|report| report.nvml.state == NvmlState::Answering)
}

/// Once all is quiet a node has the labels of GPU feature discovery that its policy wants and its driver reports, except those
/// that another user has set, and no node has any that its policy does not want.
pub fn discovered_labels_are_those_of_the_policy(sim: &Sim) {
    for (name, node) in &sim.nodes {
        let wanted = governing(sim, name).is_some_and(|policy| policy.spec.compatibility.wants_gfd());
        let ours: Vec<_> = node.owned_labels.iter().filter(|key| keys::is_discovered(key)).collect();
        assert!(wanted || ours.is_empty(), "{name}: {ours:?}");
        if !wanted || !nvml_answers(sim, name) {
            continue;
        }
        let report = &sim.machines[name];
        let replicas = if sim.has_plugin(name) { Some(sim.replicas(name).to_string()) } else { None };
        let divided = report.gpus.iter().any(|gpu| gpu.mig_devices.is_some());
        for (key, value) in [
            ("nvidia.com/cuda.driver-version.full", report.driver.loaded.clone()),
            ("nvidia.com/gpu.replicas", replicas.filter(|_| !divided)),
            (keys::GPU_PRESENT, (!report.gpus.is_empty()).then(|| "true".to_owned())),
        ] {
            let there = node.labels.get(key).map(Interned::as_str);
            let third_party = sim.user_labels[name].contains_key(key);
            let told = !report.gpus.is_empty();
            assert!(
                third_party || !told || value.is_none() || there == value.as_deref(),
                "{name}: {key} is {there:?}, not {value:?}"
            );
        }
    }
}

/// The policy that governs a node: the oldest that selects it, if it is a GPU node that has not opted out.
pub fn governing<'s>(sim: &'s Sim, name: &str) -> Option<&'s ClusterGpuPolicy> {
    let node = sim.nodes.get(name)?;
    if node.labels.get(keys::MANAGED).is_some_and(|managed| managed != "true") || !is_gpu_node(sim, name) {
        return None;
    }
    let selects = |policy: &&ClusterGpuPolicy| {
        policy.metadata.deletion_timestamp.is_none()
            && policy
                .spec
                .node_selector
                .as_ref()
                .is_none_or(|selector| selector.matches(|key| node.labels.get(key).map(Interned::as_str)))
    };
    sim.policies.values().filter(selects).min_by_key(|policy| (policy.creation_timestamp(), policy.name_any()))
}

/// Whether a node is known to have GPUs: by what its probe told last, else by labels, else by what was known before.
fn is_gpu_node(sim: &Sim, name: &str) -> bool {
    let node = &sim.nodes[name];
    let report = told(sim, name);
    let had = counts(sim, name).is_some_and(|gpus| gpus.most_seen.is_some()) || annotated(node).is_some();
    if let Some(gpus) = report {
        return gpus > 0 || (had && (is_said_to_have_gpus(node) || knew(sim, name)));
    }
    is_said_to_have_gpus(node) || knew(sim, name)
}

fn is_said_to_have_gpus(node: &NodeFacts) -> bool {
    let keys = [
        keys::MODEL_OVERRIDE,
        "cloud.google.com/gke-accelerator",
        "karpenter.k8s.aws/instance-gpu-name",
        "feature.node.kubernetes.io/pci-0302_10de.present",
        "feature.node.kubernetes.io/pci-0302_10de_2330.present",
    ];
    keys.iter().any(|key| node.labels.contains_key(*key))
}

fn knew(sim: &Sim, name: &str) -> bool {
    let node = &sim.nodes[name];
    let model = sim.gpu_nodes.get(name).and_then(|gpu_node| gpu_node.status.as_ref()?.model.as_ref());
    model.is_some() || node.labels.contains_key(keys::MODEL) && node.owned_labels.contains(keys::MODEL)
}

/// Returns the number of GPUs that a node's probe reported.
fn told(sim: &Sim, name: &str) -> Option<u32> {
    let report = sim.told(name, sim.gpu_nodes.get(name)?).status?.report?;
    Some(u32::try_from(report.gpus.len()).expect("few GPUs"))
}

/// What is remembered of this very Node.
fn counts<'s>(sim: &'s Sim, name: &str) -> Option<&'s GpuCounts> {
    let gpus = sim.gpu_nodes.get(name)?.status.as_ref().map(|status| &status.gpus)?;
    (gpus.seen_on.as_ref() == Some(&sim.nodes[name].uid)).then_some(gpus)
}

fn annotated(node: &NodeFacts) -> Option<u32> {
    node.gpu_count.as_ref()?.parse().ok()
}

/// How many GPUs are expected of a node: the number in its annotation, else that of its pool, else the most that were
/// seen on it, else what its cloud says.
fn expected(sim: &Sim, plan: &Plan, name: &str) -> Option<u32> {
    let node = &sim.nodes[name];
    let expected_resources = || pool(sim, plan, name)?.gpus_per_node;
    let seen = || told(sim, name).filter(|gpus| *gpus > 0).max(counts(sim, name).and_then(|gpus| gpus.most_seen));
    let cloud = || node.labels.get("cloud.google.com/gke-accelerator-count")?.parse().ok();
    annotated(node).or_else(expected_resources).or_else(seen).or_else(cloud)
}

/// The pool that its policy names for a node: the first that fits. A user may write a cloud's word for a model.
fn pool<'s>(sim: &'s Sim, plan: &Plan, name: &str) -> Option<&'s Pool> {
    let labels = &sim.nodes[name].labels;
    let written = plan.labels.get(name).map(|write| write.labels.get(keys::MODEL).map(String::as_str));
    let model = written.unwrap_or_else(|| labels.get(keys::MODEL).map(Interned::as_str));
    let is_model = |word: &String| model == Some(if word == "t4" { "nvidia-tesla-t4" } else { word });
    let policy = governing(sim, name)?;
    // By what the policy publishes itself no pool matches.
    let of_pools = policy.spec.pools.iter().flat_map(|pool| &pool.node_labels).map(|label| &label.key);
    let published: BTreeSet<&str> =
        policy.spec.node_labels.iter().chain(of_pools).map(String::as_str).chain(keys::NODE_LABELS).collect();
    let discovered = |key: &str| policy.spec.compatibility.wants_gfd() && keys::is_discovered(key);
    let value_of =
        |key: &str| labels.get(key).map(Interned::as_str).filter(|_| !published.contains(key) && !discovered(key));
    policy.spec.pools.iter().find(|pool| {
        (pool.matches.models.is_empty() || pool.matches.models.iter().any(is_model))
            && pool.matches.node_selector.as_ref().is_none_or(|selector| selector.matches(value_of))
    })
}

/// Of a policy's nodes that could serve, …
#[derive(Debug)]
pub struct Count {
    /// … how many can run what is expected of them,
    pub able: u32,
    /// how many of those are in the middle of a move, and so yet to be proven,
    pub moving: u32,
    /// and how many have to be able.
    pub required: u32,
}

pub fn count(sim: &Sim, plan: &Plan, policy: &str) -> Count {
    let is_governed = |node: &&NodeFacts| governing(sim, &node.name).is_some_and(|its| its.name_any() == policy);
    let serves = |node: &&NodeFacts| node.ready && !node.cordoned && !node.deleting;
    let is_able = |node: &&NodeFacts| {
        let gpus = node.allocatable.total();
        gpus > 0 && expected(sim, plan, &node.name).is_some_and(|expected| gpus >= expected * sim.replicas(&node.name))
    };
    let few = |count: usize| u32::try_from(count).expect("few nodes");
    let serving: Vec<_> = sim.nodes.values().filter(is_governed).filter(serves).collect();
    let able: Vec<_> = serving.iter().copied().filter(is_able).collect();
    let required = match sim.policies[policy].spec.readiness.min_ready_nodes.clone() {
        None => few(serving.len()),
        Some(IntOrString::Int(least)) => u32::try_from(least).expect("a number of nodes"),
        Some(IntOrString::String(percent)) => {
            let percent: u32 = percent.trim_end_matches('%').parse().expect("a percentage");
            (few(serving.len()) * percent).div_ceil(100)
        }
    };
    let moving = |node: &&&NodeFacts| sim.is_moving(&node.name);
    Count { able: few(able.len()), moving: few(able.iter().filter(moving).count()), required: required.max(1) }
}

pub fn says_ready(status: &ClusterGpuPolicyStatus) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
