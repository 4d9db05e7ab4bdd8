//! Invariants that must hold at all times, derived from the fleet's own facts and not from the operator's conclusions.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{ClusterGpuPolicy, GpuNodeStatus, NodeName, Revision, keys, policy::Stage, report::NvmlState};
use gpu_operator_plan::{
    Plan,
    pool_settings::PoolSettings,
    world::{NodeFacts, PodFacts},
};
use kube::ResourceExt;
use test_support::planned::Planned;

use super::counts::{count, reports_ready};
use crate::{
    law,
    sim::Sim,
    truth::{governing, is_used, keeps_its_stack, placing, pod},
};

/// This operator's labels on Nodes.
const OWN_LABELS: [&str; 8] = [
    keys::CLIENTS,
    keys::CUDA_VERSION,
    keys::MODEL,
    keys::POOL,
    keys::DRIVER,
    keys::TOOLKIT,
    keys::MPS,
    keys::DEVICE_PLUGIN,
];

/// Checks a fleet. It records which nodes are out of service because the operator updates them, or were until the last
/// pass.
#[derive(Default)]
pub struct Oracle {
    moved: BTreeSet<NodeName>,
    /// The numbers of writes after which the operator is killed, in rotation, before each pass; if empty, it is never
    /// killed.
    kills: Vec<usize>,
}

impl Oracle {
    /// Returns an oracle that kills the operator before every pass, after these numbers of writes.
    pub fn with_kills(kills: &[usize]) -> Self {
        Self { kills: kills.to_vec(), ..Self::default() }
    }

    /// Runs and checks one pass of the operator, and returns whether anything changed.
    pub fn step(&mut self, sim: &mut Sim) -> bool {
        let mut happened = false;
        if let Some(writes) = self.kills.first().copied() {
            self.kills.rotate_left(1);
            happened = self.killed(sim, writes);
        }
        let working: Vec<_> = self.moved.iter().filter(|name| !is_out_of_service(sim, name)).cloned().collect();
        happened |= self.pass(sim, Sim::step_with);
        law::of_records(sim).expect("labels that are on record");
        for name in &working {
            self.forget(name);
        }
        sim.sleep(1);
        happened
    }

    /// Runs passes until nothing has changed for longer than any debounce interval.
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

    /// Drops the record that a node is being updated.
    pub fn forget(&mut self, name: &NodeName) {
        self.moved.remove(name);
    }

    /// Runs a pass that ends after this number of writes, and returns whether the plan has any.
    pub fn killed(&mut self, sim: &mut Sim, writes: usize) -> bool {
        self.pass(sim, |sim, plan| {
            sim.carry_out_first(&plan, writes);
            !plan.is_empty()
        })
    }

    fn pass(&mut self, sim: &mut Sim, carry_out: impl FnOnce(&mut Sim, Plan) -> bool) -> bool {
        let plan = sim.plan();
        check(sim, &plan);
        sim.law = Some(law::holds);
        let out_of_service: BTreeSet<_> =
            self.moved.iter().filter(|name| is_out_of_service(sim, name)).cloned().collect();
        let (before, pending_restarts) = (sim.nodes.clone(), pending_restarts(sim));
        let toolkits = sim.nodes.keys().map(|name| (name.clone(), toolkits_of(sim, name))).collect();
        let happened = carry_out(sim, plan);
        for name in before.values().filter(|node| is_taken_out(sim, node)).map(|node| &node.name) {
            if self.moved.insert(name.clone()) {
                let pool = |name: &NodeName| pool_of(sim, &sim.nodes[name]);
                let other = out_of_service.iter().find(|other| pool(other) == pool(name));
                assert_eq!(other, None, "{name} is updated while another node of its pool {:?} is", pool(name));
            }
        }
        runtimes_are_restarted_one_by_one(sim, &toolkits, pending_restarts);
        happened
    }
}

/// Policy and pool of a node.
type PoolOf = (Option<String>, Option<Interned>);

fn pool_of(sim: &Sim, node: &NodeFacts) -> PoolOf {
    (governing(sim, &node.name).map(ResourceExt::name_any), node.labels.get(keys::POOL).cloned())
}

/// Returns the nodes whose container runtime may be restarted at any time, by pool: their toolkit restarts it, and has
/// neither started nor failed yet.
fn pending_restarts(sim: &Sim) -> BTreeMap<PoolOf, NodeName> {
    let comes = |node: &&NodeFacts| {
        let pod = pod(sim, &node.name, Stage::Toolkit).filter(|pod| is_selected(pod, node, Stage::Toolkit));
        let is_new = |pod: &PodFacts| pod.containers.iter().all(|container| container.last_failure.is_none());
        let to_come = pod.map_or(node.ready, |pod| !pod.has_started() && pod.init.is_empty() && is_new(pod));
        sim.restarts_runtime(&node.name) && to_come
    };
    sim.nodes.values().filter(comes).map(|node| (pool_of(sim, node), node.name.clone())).collect()
}

/// Returns the toolkits that a node may get at once: the one that it has on record, if its label is lost, and the one from which it is
/// being updated, if the update ends early; without a record the one in its label.
fn toolkits_of(sim: &Sim, name: &NodeName) -> Vec<Revision> {
    let spec = sim.gpu_nodes.get(name).map(|gpu_node| &gpu_node.spec);
    let recorded = spec.and_then(|spec| spec.current.as_ref()?.toolkit.clone());
    let labelled = || Some(sim.nodes[name].labels.get(keys::TOOLKIT)?.as_str().into());
    let before = spec.and_then(|spec| spec.rollout.as_ref()?.from.toolkit.clone());
    recorded.or_else(labelled).into_iter().chain(before).collect()
}

/// No node gets a toolkit that restarts its container runtime while such a toolkit is pending on another node of its
/// pool.
fn runtimes_are_restarted_one_by_one(
    sim: &Sim,
    before: &BTreeMap<NodeName, Vec<Revision>>,
    mut pending_restarts: BTreeMap<PoolOf, NodeName>,
) {
    for (name, node) in &sim.nodes {
        let had = before.get(name).map(Vec::as_slice).unwrap_or_default();
        let label = node.labels.get(keys::TOOLKIT).map(Interned::as_str);
        if label.is_none_or(|label| had.iter().any(|had| had.as_str() == label)) || !sim.restarts_runtime(name) {
            continue;
        }
        let pool = pool_of(sim, node);
        let other = pending_restarts.insert(pool.clone(), name.clone()).filter(|other| other != name);
        assert_eq!(other, None, "the runtimes of this node and of {name}, of pool {pool:?}, are restarted at once");
    }
}

/// Returns whether a pass changed the revision of a node that had allocatable GPUs.
fn is_taken_out(sim: &Sim, before: &NodeFacts) -> bool {
    let Some(after) = sim.nodes.get(&before.name).filter(|node| governing(sim, &node.name).is_some()) else {
        return false;
    };
    let changed = |stage: Stage| {
        let had = placing(sim, before, stage);
        had.is_some() && had != after.labels.get(stage.key())
    };
    sim.served(&before.name) > 0 && Stage::ALL.into_iter().any(changed)
}

/// Returns whether a governed node lacks a plugin, or any pod that its labels select.
fn is_out_of_service(sim: &Sim, name: &NodeName) -> bool {
    governing(sim, name).is_some() && !is_complete(sim, name)
}

/// Returns whether a node has a plugin, and all pods that its labels select are running, or its plugin offers GPUs: a driver's container
/// that crashes after it has loaded the driver takes nothing from pods.
fn is_complete(sim: &Sim, name: &NodeName) -> bool {
    let node = &sim.nodes[name];
    let runs = |stage: Stage| pod(sim, name, stage).is_some_and(|pod| pod.running() && is_selected(pod, node, stage));
    let offers = || runs(Stage::DevicePlugin) && sim.served(name) > 0;
    node.labels.contains_key(keys::DEVICE_PLUGIN)
        && (offers() || Stage::ALL.into_iter().all(|stage| !node.labels.contains_key(stage.key()) || runs(stage)))
}

/// Returns whether a pod has the revision that its node's label selects.
fn is_selected(pod: &PodFacts, node: &NodeFacts, stage: Stage) -> bool {
    pod.revision.as_ref().map(Revision::as_str) == node.labels.get(stage.key()).map(Interned::as_str)
}

/// Checks a plan before it is carried out.
pub fn check(sim: &Sim, plan: &Plan) {
    nodes_with_gpu_pods_keep_their_plugin(sim, plan);
    only_named_keys_are_written(sim, plan);
    discovered_labels_are_kept_without_a_report(sim, plan);
    nothing_starts_beside_a_foreign_pod(sim, plan);
    ready_nodes_lose_their_startup_taints(sim, plan);
    for (name, status) in &plan.statuses {
        let count = count(sim, plan, name);
        let enough = count.able + count.updating >= count.required;
        assert!(!reports_ready(status) || enough, "{name}: {count:?}: {status:#?}");
    }
}

/// While the operator sees everything at once, no node with a GPU pod loses its plugin.
fn nodes_with_gpu_pods_keep_their_plugin(sim: &Sim, plan: &Plan) {
    for (name, write) in plan.labels().iter().filter(|(name, _)| is_used(sim, name) && keeps_its_stack(sim, name)) {
        let plugin = placing(sim, &sim.nodes[name], Stage::DevicePlugin);
        assert!(plugin.is_none() || write.labels.contains_key(keys::DEVICE_PLUGIN), "{name} loses its plugin");
    }
}

/// A node without operands of this operator but with a driver pod without a DaemonSet gets no operands.
fn nothing_starts_beside_a_foreign_pod(sim: &Sim, plan: &Plan) {
    for (name, write) in plan.labels().iter().filter(|(name, _)| sim.foreign_pod_on(name).is_some()) {
        let current = sim.gpu_nodes.get(name).and_then(|gpu_node| gpu_node.spec.current.as_ref());
        let had = |stage: Stage| {
            let is_labelled = sim.nodes[name].labels.get(stage.key()).is_some_and(|revision| !revision.is_empty());
            is_labelled || current.is_some_and(|current| current.get(stage).is_some())
        };
        let gets = |stage: Stage| write.labels.contains_key(stage.key());
        assert!(
            Stage::ALL.into_iter().any(had) || !Stage::ALL.into_iter().any(gets),
            "{name}: {write:?} starts beside another driver"
        );
        assert!(had(Stage::Driver) || !gets(Stage::Driver), "{name}: a driver starts beside another");
    }
}

/// The plan that finds a node ready removes its startup taints.
fn ready_nodes_lose_their_startup_taints(sim: &Sim, plan: &Plan) {
    let (statuses, taints) = (plan.node_statuses(), plan.taints());
    for (name, node) in &sim.nodes {
        let policy = governing(sim, name);
        let key = policy.and_then(|policy| Some(policy.spec.readiness.startup_taint.as_ref()?.key().to_owned()));
        let is_tainted = |key: &String| node.taints.iter().any(|taint| taint.key == *key);
        let Some(key) = key.filter(is_tainted) else { continue };
        let written = sim.gpu_nodes.get(name).and_then(|gpu_node| gpu_node.status.as_ref());
        let is_ready = statuses.get(name).copied().or(written).is_some_and(GpuNodeStatus::is_ready);
        // Until kubelet reports a reboot, nothing has been reported of the boot that it names.
        let is_its_boot = sim.machines.get(name).is_some_and(|machine| *machine.boot_id == *node.boot_id);
        let serves = is_its_boot && sim.has_served(name) && is_complete(sim, name);
        let lifted = taints.get(name).and_then(|write| Some(&write.lifted.as_ref()?.key));
        assert!(!is_ready || !serves || lifted == Some(&key), "{name} is ready and keeps taint {key}: {plan:#?}");
    }
}

/// The operator only writes its own labels and those that the node's policy names; a node that is leaving keeps what it has.
fn only_named_keys_are_written(sim: &Sim, plan: &Plan) {
    for (name, write) in &plan.labels() {
        let spec = governing(sim, name).map(|policy| &policy.spec);
        let labels = spec.into_iter().flat_map(|spec| spec.labels_of(&spec.pools));
        let named: BTreeSet<&str> = labels.map(|label| label.key.as_str()).collect();
        let discovered = spec.is_some_and(|spec| spec.compatibility.wants_gfd());
        let keeps = |key: &str| spec.is_none() && sim.nodes[name].owned_labels.contains(key);
        let legal = |key: &&String| {
            OWN_LABELS.contains(&key.as_str())
                || named.contains(key.as_str())
                || discovered && keys::is_discovered(key)
                || keeps(key)
        };
        let illegal: Vec<_> = write.labels.keys().filter(|key| !legal(key)).collect();
        assert!(illegal.is_empty(), "{name}: {illegal:?}");
    }
}

/// While a policy requests the labels of GPU feature discovery, they are only removed if NVML reports the GPUs.
fn discovered_labels_are_kept_without_a_report(sim: &Sim, plan: &Plan) {
    for (name, write) in &plan.labels() {
        let wanted = governing(sim, name).is_some_and(|policy| policy.spec.compatibility.wants_gfd());
        let gone = sim.nodes[name].owned_labels.iter().filter(|key| keys::is_discovered(key));
        let gone: Vec<_> = gone.filter(|key| !write.labels.contains_key(key.as_str())).collect();
        assert!(
            gone.is_empty() || !wanted || nvml_answers(sim, name),
            "{name}: {gone:?} removed without a report by NVML"
        );
    }
}

fn nvml_answers(sim: &Sim, name: &NodeName) -> bool {
    let report = sim.gpu_nodes.get(name).and_then(|gpu_node| sim.with_report(name, gpu_node).status?.report);
    let boot = &sim.nodes[name].boot_id;
    report.is_some_and(|report| report.boot_id == **boot && report.nvml.state == NvmlState::Answering)
}

/// Returns whether a node's plugin shares GPUs by MPS. Without a plugin the settings of the policy count, even if the node cannot
/// have them.
fn shares_by_mps(sim: &Sim, node: &NodeFacts, policy: &ClusterGpuPolicy) -> bool {
    if sim.has_plugin(&node.name) {
        return node.labels.contains_key(keys::MPS);
    }
    let name = node.labels.get(keys::POOL).map(Interned::as_str);
    let pool = policy.spec.pools.iter().find(|pool| name == Some(pool.name.as_str()));
    PoolSettings::of(policy, pool).device_plugin.sharing.mps.is_some()
}

/// Once the fleet has settled, a node has the labels of GPU feature discovery that its policy requests and its driver
/// reports, except those that another user has set, and no node has any that its policy does not request.
pub fn discovered_labels_are_those_of_the_policy(sim: &Sim) {
    for (name, node) in &sim.nodes {
        let policy = governing(sim, name).filter(|policy| policy.spec.compatibility.wants_gfd());
        let owned: Vec<_> = node.owned_labels.iter().filter(|key| keys::is_discovered(key)).collect();
        // A node that is leaving keeps everything while a pod uses a GPU.
        let stays = governing(sim, name).is_none() && is_used(sim, name);
        assert!(policy.is_some() || stays || owned.is_empty(), "{name}: {owned:?}");
        let Some(policy) = policy.filter(|_| nvml_answers(sim, name)) else { continue };
        let status = sim.gpu_nodes.get(name).and_then(|gpu_node| gpu_node.status.as_ref());
        let Some(report) = status.and_then(|status| status.report.as_ref()) else { continue };
        let replicas = if sim.has_plugin(name) { Some(sim.replicas(name).to_string()) } else { None };
        let partitioned = report.gpus.iter().any(|gpu| gpu.mig_devices.is_some());
        // NVIDIA's program fails then, and keeps its earlier labels.
        if partitioned && shares_by_mps(sim, node, policy) {
            continue;
        }
        for (key, value) in [
            ("nvidia.com/cuda.driver-version.full", report.driver.loaded.clone()),
            ("nvidia.com/gpu.replicas", replicas.filter(|_| !partitioned)),
            (keys::GPU_PRESENT, (!report.gpus.is_empty()).then(|| "true".to_owned())),
        ] {
            let there = node.labels.get(key).map(Interned::as_str);
            let third_party = sim.user_labels[name].contains_key(key);
            let has_gpus = !report.gpus.is_empty();
            assert!(
                third_party || !has_gpus || value.is_none() || there == value.as_deref(),
                "{name}: {key} is {there:?}, not {value:?}"
            );
        }
    }
}
